//! Events as JSON records.

use std::io::Write;

use serde_json::{Map, Value, json};
use squall_wire::{
    Ack, ConnectionId, Direction, Frame, Frames, PacketType, Path, Side, TransportErrorCode,
    TransportParameters,
};

use super::{Metrics, Packet};
use crate::config::MIN_UDP_PAYLOAD;
use crate::error::CloseReason;
use crate::time::Time;

/// RFC 7464 §2.2: the start of every record.
const RECORD_SEPARATOR: u8 = 0x1e;

/// The log of a connection.
pub(crate) struct Qlog {
    sink: Box<dyn Write + Send>,
    record: Vec<u8>,
    side: Side,
    /// The versions that this end supports, and the one in use, as last logged.
    versions: Vec<u32>,
    version: u32,
    metrics: Metrics,
    /// The peer's address and the size of the path, as last logged.
    remote: Option<std::net::SocketAddr>,
    mtu: u16,
    /// Whether the connection's end has been logged. Few records follow, and which is the last is
    /// unknown: each is flushed through the sink, so that the log is complete when the connection
    /// is gone, even if something still holds the rest of it.
    ended: bool,
}

impl Qlog {
    /// Begins the log with its header.
    pub(crate) fn new(
        sink: Box<dyn Write + Send>,
        side: Side,
        original_dcid: &ConnectionId,
    ) -> Self {
        let mut log = Self {
            sink,
            record: Vec::new(),
            side,
            versions: Vec::new(),
            version: 0,
            metrics: Metrics::default(),
            remote: None,
            mtu: MIN_UDP_PAYLOAD,
            ended: false,
        };
        log.put(&json!({
            "file_schema": "urn:ietf:params:qlog:file:sequential",
            "serialization_format": "application/qlog+json-seq",
            "trace": {
                "common_fields": {
                    "group_id": hex(original_dcid.as_slice()),
                    "time_format": "relative_to_epoch",
                    "reference_time": { "clock_type": "monotonic", "epoch": "unknown" },
                },
                "vantage_point": { "type": name_of_side(side) },
                "event_schemas": [
                    "urn:ietf:params:qlog:events:quic",
                    "urn:ietf:params:qlog:events:http3",
                ],
            },
        }));
        log
    }

    fn put(&mut self, record: &Value) {
        self.record.clear();
        self.record.push(RECORD_SEPARATOR);
        // A log that cannot be written must not end the connection.
        if serde_json::to_writer(&mut self.record, record).is_ok() {
            self.record.push(b'\n');
            let _ = self.sink.write_all(&self.record);
            if self.ended {
                let _ = self.sink.flush();
            }
        }
    }

    fn event(&mut self, now: Time, name: &str, data: impl Into<Value>) {
        let time = now.as_nanos() as f64 / 1e6;
        let data: Value = data.into();
        self.put(&json!({ "time": time, "name": name, "data": data }));
    }

    /// An event of the protocol above QUIC, whose data is a JSON object.
    pub(crate) fn application_event(&mut self, now: Time, name: &str, data: &str) {
        let Ok(data) = serde_json::from_str::<Value>(data) else {
            return;
        };
        self.event(now, name, data);
    }

    pub(crate) fn connection_started(&mut self, now: Time, path: Path, ids: [ConnectionId; 2]) {
        let local = path.local.map(|ip| std::net::SocketAddr::new(ip, 0));
        let data = json!({
            "local": endpoint(local, &ids[0]),
            "remote": endpoint(Some(path.remote), &ids[1]),
        });
        self.remote = Some(path.remote);
        self.event(now, "quic:connection_started", data);
    }

    /// Logs where the peer is and what the path carries, if either has changed.
    pub(crate) fn path(&mut self, now: Time, path: Path, id: &ConnectionId, mtu: u16) {
        if self.remote != Some(path.remote) {
            self.remote = Some(path.remote);
            self.tuple_assigned(now, path, id);
        }
        if self.mtu != mtu {
            let old = std::mem::replace(&mut self.mtu, mtu);
            self.event(now, "quic:mtu_updated", json!({ "old": old, "new": mtu }));
        }
    }

    fn tuple_assigned(&mut self, now: Time, path: Path, id: &ConnectionId) {
        let data = json!({
            "tuple_id": path.remote.to_string(),
            "tuple_remote": endpoint(Some(path.remote), id),
        });
        self.event(now, "quic:tuple_assigned", data);
    }

    pub(crate) fn connection_closed(&mut self, now: Time, reason: &CloseReason) {
        let side = |remote: &bool| if *remote { "remote" } else { "local" };
        let data = match reason {
            CloseReason::Transport {
                code,
                reason,
                remote,
            } => json!({
                "initiator": side(remote),
                "connection_error": error_name(*code),
                "error_code": code.0,
                "reason": reason,
                "trigger": "error",
            }),
            CloseReason::Application {
                code,
                reason,
                remote,
            } => json!({
                "initiator": side(remote),
                "application_error": "unknown",
                "error_code": code,
                "reason": String::from_utf8_lossy(reason),
                "trigger": "application",
            }),
            CloseReason::IdleTimeout | CloseReason::HandshakeTimeout => {
                json!({ "trigger": "idle_timeout" })
            }
            CloseReason::Unreachable(_) => {
                json!({ "initiator": "local", "reason": reason.to_string() })
            }
            CloseReason::Reset => json!({ "initiator": "remote", "trigger": "stateless_reset" }),
            CloseReason::VersionMismatch => json!({ "trigger": "version_mismatch" }),
            CloseReason::NotStarted(why) => json!({ "initiator": "local", "reason": why }),
        };
        self.ended = true;
        self.event(now, "quic:connection_closed", data);
    }

    /// Logs the versions that this end supports, and the one that it begins with.
    pub(crate) fn version_information(&mut self, now: Time, ours: &[u32], chosen: u32) {
        self.versions = ours.to_vec();
        self.chosen_version(now, chosen);
    }

    /// Logs the version in use, if it has changed.
    pub(crate) fn chosen_version(&mut self, now: Time, chosen: u32) {
        if self.version == chosen {
            return;
        }
        self.version = chosen;
        let ours = match self.side {
            Side::Client => "client_versions",
            Side::Server => "server_versions",
        };
        let data = json!({ ours: names_of(&self.versions), "chosen_version": name_of(chosen) });
        self.event(now, "quic:version_information", data);
    }

    /// Logs a Version Negotiation packet with the server's versions, and the version with which the
    /// client begins anew, if there is one.
    pub(crate) fn version_negotiation(&mut self, now: Time, list: &[u8], chosen: Option<u32>) {
        let data = json!({ "header": { "packet_type": "version_negotiation" } });
        self.event(now, "quic:packet_received", data);
        self.version = chosen.unwrap_or(self.version);
        let (versions, _) = list.as_chunks();
        let versions: Vec<u32> = versions.iter().copied().map(u32::from_be_bytes).collect();
        let data = json!({
            "client_versions": names_of(&self.versions),
            "server_versions": names_of(&versions),
            "chosen_version": chosen.map(name_of),
        });
        self.event(now, "quic:version_information", without_nulls(data));
    }

    /// Logs a Retry packet.
    pub(crate) fn retry(&mut self, now: Time, scid: &ConnectionId, token: &[u8]) {
        let token = json!({ "type": "retry", "raw": { "length": token.len() } });
        let scid = hex(scid.as_slice());
        let header = json!({ "packet_type": "retry", "scid": scid, "token": token });
        self.event(now, "quic:packet_received", json!({ "header": header }));
    }

    pub(crate) fn alpn_information(&mut self, now: Time, chosen: Option<&[u8]>) {
        let chosen = chosen
            .map(|c| json!({ "byte_value": hex(c), "string_value": String::from_utf8_lossy(c) }));
        self.event(
            now,
            "quic:alpn_information",
            json!({ "chosen_alpn": chosen }),
        );
    }

    pub(crate) fn parameters_set(&mut self, now: Time, initiator: &str, p: &TransportParameters) {
        let id = |id: &Option<ConnectionId>| id.map(|id| hex(id.as_slice()));
        let data = json!({
            "initiator": initiator,
            "original_destination_connection_id": id(&p.original_destination_connection_id),
            "initial_source_connection_id": id(&p.initial_source_connection_id),
            "retry_source_connection_id": id(&p.retry_source_connection_id),
            "disable_active_migration": p.disable_active_migration,
            "max_idle_timeout": p.max_idle_timeout_ms,
            "max_udp_payload_size": p.max_udp_payload_size,
            "ack_delay_exponent": p.ack_delay_exponent,
            "max_ack_delay": p.max_ack_delay_ms,
            "active_connection_id_limit": p.active_connection_id_limit,
            "initial_max_data": p.initial_max_data,
            "initial_max_stream_data_bidi_local": p.initial_max_stream_data_bidi_local,
            "initial_max_stream_data_bidi_remote": p.initial_max_stream_data_bidi_remote,
            "initial_max_stream_data_uni": p.initial_max_stream_data_uni,
            "initial_max_streams_bidi": p.initial_max_streams_bidi,
            "initial_max_streams_uni": p.initial_max_streams_uni,
            "max_datagram_frame_size": p.max_datagram_frame_size,
            "grease_quic_bit": p.grease_quic_bit,
        });
        self.event(now, "quic:parameters_set", without_nulls(data));
    }

    pub(crate) fn state(&mut self, now: Time, new: &str) {
        self.event(now, "quic:connection_state_updated", json!({ "new": new }));
    }

    pub(crate) fn packet_sent(&mut self, now: Time, packet: Packet<'_>, is_mtu_probe: bool) {
        let mut data = described(packet);
        if is_mtu_probe {
            data["is_mtu_probe_packet"] = true.into();
        }
        self.event(now, "quic:packet_sent", data);
    }

    pub(crate) fn packet_received(&mut self, now: Time, packet: Packet<'_>) {
        self.event(now, "quic:packet_received", described(packet));
    }

    pub(crate) fn packet_dropped(&mut self, now: Time, ty: PacketType, len: usize, trigger: &str) {
        let data = json!({
            "header": { "packet_type": name_of_type(ty) },
            "raw": { "length": len },
            "trigger": trigger,
        });
        self.event(now, "quic:packet_dropped", data);
    }

    pub(crate) fn packet_lost(&mut self, now: Time, ty: PacketType, number: u64, is_probe: bool) {
        let data = json!({
            "header": { "packet_type": name_of_type(ty), "packet_number": number },
            "is_mtu_probe_packet": is_probe,
        });
        self.event(now, "quic:packet_lost", data);
    }

    pub(crate) fn metrics_updated(&mut self, now: Time, metrics: Metrics) {
        if self.metrics == metrics {
            return;
        }
        self.metrics = metrics;
        let data = json!({
            "min_rtt": metrics.min_rtt,
            "smoothed_rtt": metrics.smoothed_rtt,
            "latest_rtt": metrics.latest_rtt,
            "rtt_variance": metrics.rtt_variance,
            "pto_count": metrics.pto_count,
            "congestion_window": metrics.congestion_window,
            "bytes_in_flight": metrics.bytes_in_flight,
        });
        self.event(now, "quic:recovery_metrics_updated", data);
    }

    pub(crate) fn key_updated(&mut self, now: Time, remote: bool, phase: u64) {
        let trigger = if remote {
            "remote_update"
        } else {
            "local_update"
        };
        for key in ["server_1rtt_secret", "client_1rtt_secret"] {
            let data = json!({ "key_type": key, "key_phase": phase, "trigger": trigger });
            self.event(now, "quic:key_updated", data);
        }
    }
}

impl std::fmt::Debug for Qlog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qlog").finish_non_exhaustive()
    }
}

const fn name_of_side(side: Side) -> &'static str {
    match side {
        Side::Client => "client",
        Side::Server => "server",
    }
}

/// Versions as the schema has them: eight hexadecimal digits.
fn name_of(version: u32) -> String {
    format!("{version:08x}")
}

fn names_of(versions: &[u32]) -> Vec<String> {
    versions.iter().copied().map(name_of).collect()
}

const fn name_of_type(ty: PacketType) -> &'static str {
    match ty {
        PacketType::Initial => "initial",
        PacketType::ZeroRtt => "0RTT",
        PacketType::Handshake => "handshake",
        PacketType::OneRtt => "1RTT",
    }
}

fn error_name(code: TransportErrorCode) -> String {
    match (code.alert(), code.name()) {
        (Some(alert), _) => format!("crypto_error_0x1{alert:02x}"),
        (None, Some(name)) => name.to_ascii_lowercase(),
        (None, None) => "unknown".to_owned(),
    }
}

fn endpoint(address: Option<std::net::SocketAddr>, id: &ConnectionId) -> Value {
    let mut value = Map::new();
    if let Some(address) = address {
        let (ip, port) = match address {
            std::net::SocketAddr::V4(_) => ("ip_v4", "port_v4"),
            std::net::SocketAddr::V6(_) => ("ip_v6", "port_v6"),
        };
        value.insert(ip.to_owned(), address.ip().to_string().into());
        // The core does not know this end's.
        if address.port() != 0 {
            value.insert(port.to_owned(), address.port().into());
        }
    }
    value.insert("connection_ids".to_owned(), json!([hex(id.as_slice())]));
    value.into()
}

fn described(packet: Packet<'_>) -> Value {
    let frames: Vec<Value> = Frames::new(packet.payload)
        .map_while(Result::ok)
        .map(|frame| described_frame(&frame))
        .collect();
    json!({
        "header": { "packet_type": name_of_type(packet.ty), "packet_number": packet.number },
        "raw": { "length": packet.len },
        "frames": frames,
    })
}

fn described_frame(frame: &Frame<'_>) -> Value {
    let kind = |direction: Direction| match direction {
        Direction::Bidirectional => "bidirectional",
        Direction::Unidirectional => "unidirectional",
    };
    match *frame {
        Frame::Padding(count) => json!({ "frame_type": "padding", "raw": { "length": count } }),
        Frame::Ping => json!({ "frame_type": "ping" }),
        Frame::Ack(ref ack) => described_ack(ack),
        Frame::ResetStream {
            id,
            error_code,
            final_size,
        } => json!({
            "frame_type": "reset_stream", "stream_id": id.0, "error": "unknown",
            "error_code": error_code, "final_size": final_size,
        }),
        Frame::ResetStreamAt {
            id,
            error_code,
            final_size,
            reliable_size,
        } => json!({
            "frame_type": "reset_stream_at", "stream_id": id.0, "error": "unknown",
            "error_code": error_code, "final_size": final_size, "reliable_size": reliable_size,
        }),
        Frame::StopSending { id, error_code } => json!({
            "frame_type": "stop_sending", "stream_id": id.0, "error": "unknown", "error_code": error_code,
        }),
        Frame::Crypto { offset, data } => json!({
            "frame_type": "crypto", "offset": offset, "raw": { "length": data.len() },
        }),
        Frame::NewToken { token } => json!({
            "frame_type": "new_token", "token": { "raw": { "length": token.len() } },
        }),
        Frame::Stream {
            id,
            offset,
            fin,
            data,
        } => json!({
            "frame_type": "stream", "stream_id": id.0, "offset": offset, "fin": fin,
            "raw": { "length": data.len() },
        }),
        Frame::MaxData(maximum) => json!({ "frame_type": "max_data", "maximum": maximum }),
        Frame::MaxStreamData { id, maximum } => json!({
            "frame_type": "max_stream_data", "stream_id": id.0, "maximum": maximum,
        }),
        Frame::MaxStreams { direction, maximum } => json!({
            "frame_type": "max_streams", "stream_type": kind(direction), "maximum": maximum,
        }),
        Frame::DataBlocked(limit) => json!({ "frame_type": "data_blocked", "limit": limit }),
        Frame::StreamDataBlocked { id, limit } => json!({
            "frame_type": "stream_data_blocked", "stream_id": id.0, "limit": limit,
        }),
        Frame::StreamsBlocked { direction, limit } => json!({
            "frame_type": "streams_blocked", "stream_type": kind(direction), "limit": limit,
        }),
        Frame::NewConnectionId {
            sequence,
            retire_prior_to,
            id,
            ..
        } => json!({
            "frame_type": "new_connection_id", "sequence_number": sequence,
            "retire_prior_to": retire_prior_to, "connection_id": hex(id.as_slice()),
        }),
        Frame::RetireConnectionId { sequence } => json!({
            "frame_type": "retire_connection_id", "sequence_number": sequence,
        }),
        Frame::PathChallenge(data) => {
            json!({ "frame_type": "path_challenge", "data": hex(&data) })
        }
        Frame::PathResponse(data) => json!({ "frame_type": "path_response", "data": hex(&data) }),
        Frame::ConnectionClose {
            error_code,
            frame_type,
            reason,
        } => described_close(error_code, frame_type, reason),
        Frame::HandshakeDone => json!({ "frame_type": "handshake_done" }),
        Frame::Datagram { data } => {
            json!({ "frame_type": "datagram", "raw": { "length": data.len() } })
        }
        Frame::AckFrequency(_) | Frame::ImmediateAck => {
            json!({ "frame_type": "unknown", "frame_type_bytes": frame.ty() })
        }
    }
}

fn described_ack(ack: &Ack<'_>) -> Value {
    let ranges: Vec<[u64; 2]> = ack.ranges().map(|r| [*r.start(), *r.end()]).collect();
    let mut value = json!({ "frame_type": "ack", "ack_delay": ack.delay, "acked_ranges": ranges });
    if let Some(ecn) = ack.ecn {
        value["ect0"] = ecn.ect0.into();
        value["ect1"] = ecn.ect1.into();
        value["ce"] = ecn.ce.into();
    }
    value
}

fn described_close(error_code: u64, frame_type: Option<u64>, reason: &[u8]) -> Value {
    json!({
        "frame_type": "connection_close",
        "error_space": if frame_type.is_some() { "transport" } else { "application" },
        "error": frame_type.map_or_else(
            || "unknown".to_owned(),
            |_| error_name(TransportErrorCode(error_code)),
        ),
        "error_code": error_code,
        "reason": String::from_utf8_lossy(reason),
    })
}

fn without_nulls(mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.retain(|_, v| !v.is_null());
    }
    value
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
