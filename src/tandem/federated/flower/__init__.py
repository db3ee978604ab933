"""A fleet over Flower: the transport of messages and the processes. Nothing else imports flwr."""
