"""A queue over HTTP as one writes it in an afternoon: FastAPI, and lists in Redis. It is what Rookery is compared with.

Run it with the port of HTTP and that of Redis. A message is pushed to the list of its queue, a claim moves it to a
list of those that are out, an ack removes it from there.
"""

import secrets
import subprocess
import sys
import uuid

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel
from redis.asyncio import Redis

KEY = "benchmark"
app = FastAPI()
redis = Redis(port=int(sys.argv[2]))


class Message(BaseModel):
    message: str
    priority: int = 0


class Tag(BaseModel):
    delivery_tag: str


async def check_key(authorization: str = Header()) -> None:
    if not secrets.compare_digest(authorization, f"Bearer {KEY}"):
        raise HTTPException(401)


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/queues/{name}/publish", dependencies=[Depends(check_key)])
async def publish(name: str, message: Message) -> dict[str, str]:
    number = str(uuid.uuid4())
    await redis.rpush(name, f"{number} {message.message}")
    return {"message_id": number}


@app.post("/queues/{name}/pull", dependencies=[Depends(check_key)])
async def pull(name: str) -> dict[str, str | None]:
    found = await redis.lmove(name, f"{name}.out", "LEFT", "RIGHT")
    return {"delivery_tag": None if found is None else found.decode()}


@app.post("/queues/{name}/ack", dependencies=[Depends(check_key)])
async def ack(name: str, tag: Tag) -> dict[str, str]:
    await redis.lrem(f"{name}.out", 1, tag.delivery_tag)
    return {"status": "ok"}


if __name__ == "__main__":
    command = ["redis-server", "--bind", "127.0.0.1", "--port", sys.argv[2], "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
        finally:
            server.terminate()
