"""The Flower app of a fleet: client.py has the ClientApp of a device, server.py the ServerApp."""
