"""The door of controller and other nodes: POST /v1/plan, report, span, peer and image, signed both ways."""

from __future__ import annotations

from gandiva_slurm.node.context import Node
from gandiva_slurm.node.handing import Hander
from gandiva_slurm.node.peers import Helper
from gandiva_slurm.node.planning import Planning
from gandiva_slurm.node.report import make_report
from gandiva_slurm.node.span import Spans
from gandiva_slurm.wire import http
from gandiva_slurm.wire.auth import Signer
from gandiva_slurm.wire.door import Door, open_door
from gandiva_slurm.wire.image import IMAGE_PATH
from gandiva_slurm.wire.messages import decode_plan, encode
from gandiva_slurm.wire.peer import PEER_PATH
from gandiva_slurm.wire.span import SPAN_PATH, decode_order


async def serve(node: Node, planning: Planning, spans: Spans, helper: Helper, signer: Signer) -> Door:
    """Listen; `cleanup` of what is returned ends it."""
    hander = Hander(node)

    async def on_plan(payload: bytes, uid: int) -> bytes:
        planning.take(decode_plan(payload))
        return encode(make_report(node))

    async def on_report(payload: bytes, uid: int) -> bytes:
        return encode(make_report(node))

    async def on_span(payload: bytes, uid: int) -> bytes:
        return encode(await spans.take(decode_order(payload)))

    async def on_peer(payload: bytes, uid: int) -> bytes:
        return await helper.answer(payload)

    async def on_image(payload: bytes, uid: int) -> bytes:
        return await hander.answer(payload)

    def allow(uid: int) -> bool:
        return uid in node.settings.obeyed_uids

    routes = {
        "/v1/plan": http.signed_route(signer, allow, on_plan),
        "/v1/report": http.signed_route(signer, allow, on_report),
        SPAN_PATH: http.signed_route(signer, allow, on_span),
        PEER_PATH: http.signed_route(signer, allow, on_peer),
        IMAGE_PATH: http.signed_route(signer, allow, on_image),
    }
    return await open_door(routes, node.settings.host, node.settings.port)
