"""A fleet of separate devices and their server, independent of the transport of messages.

- ``messages``: one instruction to and one report from each device in each round.
- ``client``, ``client_round``, ``client_store``: a device, which handles an instruction and stores its state.
- ``server``, ``server_store``: the server, which plans a round, aggregates the reports and stores both.
- ``decider``: what decides: a function from the server's estimate to the mode, power and frequency of every device.
- ``runner``: the loop over rounds; ``api``: create a run or open an existing one.

A ``runner.Transport`` delivers messages; ``tandem.federated.flower`` has one.
"""
