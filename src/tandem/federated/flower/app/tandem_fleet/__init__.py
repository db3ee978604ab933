"""A fleet as a Flower app; client.py is a device's door, server.py the server's."""
