"""The client of `benchmarks.peers.with_flower`, in a module that Flower's worker processes import once."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional as F

from benchmarks.peers.records import clients
from sottovoce.models.architectures import lenet

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One step on all of the client's records from the parameters received."""
    torch.set_num_threads(1)
    module = lenet((3, 32, 32), 10)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = clients()[int(context.node_config["partition-id"])]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.autograd.backward(F.cross_entropy(module(x), y))
    optimizer.step()
    answer = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict(answer), reply_to=message)
