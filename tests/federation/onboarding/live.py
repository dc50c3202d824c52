"""The service on a real port in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from sottovoce.federation.onboarding.service import configured
from tests.federation.processes import free_port


@contextmanager
def live(service: FastAPI, **options: int) -> Iterator[str]:
    """Serves until the block ends; yields the URL."""
    port = free_port()
    server = uvicorn.Server(configured(service, host="127.0.0.1", port=port, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
