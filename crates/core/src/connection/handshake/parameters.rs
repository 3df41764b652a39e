//! Transport parameters: those that this end declares, and the rules for the peer's (RFC 9000 §7.4,
//! §18.2).

use squall_wire::{
    ConnectionId, FixedBit, Side, TransportError, TransportErrorCode, TransportParameters,
    VersionInformation, Writer,
};

use crate::config::{MAX_REMOTE_IDS, MIN_ACK_DELAY, TransportConfig};

/// The transport parameters that either end declares.
pub(crate) fn declared(
    config: &TransportConfig,
    local_id: ConnectionId,
    fixed_bit: FixedBit,
) -> TransportParameters {
    TransportParameters {
        max_idle_timeout_ms: u64::try_from(config.max_idle_timeout.as_millis())
            .unwrap_or(u64::MAX)
            .min(squall_wire::varint::MAX),
        max_udp_payload_size: config.max_received_udp_payload.into(),
        initial_max_data: config.initial_window,
        initial_max_stream_data_bidi_local: config.initial_stream_window,
        initial_max_stream_data_bidi_remote: config.initial_stream_window,
        initial_max_stream_data_uni: config.initial_stream_window,
        initial_max_streams_bidi: config.max_concurrent_bidi_streams,
        initial_max_streams_uni: config.max_concurrent_uni_streams,
        max_ack_delay_ms: u64::try_from(config.max_ack_delay.as_millis()).unwrap_or(25),
        disable_active_migration: !config.allow_migration,
        active_connection_id_limit: MAX_REMOTE_IDS,
        initial_source_connection_id: Some(local_id),
        max_datagram_frame_size: Some(config.accepted_datagram_frame()).filter(|&size| size > 0),
        grease_quic_bit: fixed_bit == FixedBit::Greased,
        min_ack_delay_us: Some(MIN_ACK_DELAY.as_micros() as u64),
        reset_stream_at: true,
        ..TransportParameters::default()
    }
}

/// The encoded transport parameters of an end of `side` that has chosen `version`.
pub(crate) fn encoded(
    params: &TransportParameters,
    side: Side,
    version: u32,
    config: &TransportConfig,
    grease: (u64, u8),
) -> Vec<u8> {
    let available = config.available_versions(side, version);
    let params = TransportParameters {
        version_information: Some(VersionInformation::new(version, available)),
        ..params.clone()
    };
    let mut bytes = Vec::with_capacity(192);
    params.encode(&mut bytes, Some(grease));
    bytes
}

/// The version with which a server continues, given the client's encoded transport parameters (RFC
/// 9368 §2.3). Versions 1 and 2 are compatible with each other (RFC 9369 §4). Wrong parameters are
/// reported once the handshake has authenticated them.
pub(crate) fn choose_version(
    config: &TransportConfig,
    original: u32,
    params: Option<&[u8]>,
) -> u32 {
    params
        .and_then(|bytes| TransportParameters::decode(bytes, Side::Client).ok())
        .and_then(|params| params.version_information)
        .and_then(|info| config.choose_version(|v| info.available().contains(&v)))
        .unwrap_or(original)
}

/// The limits that a client remembers and a server must not lower (RFC 9000 §7.4.1, RFC 9221 §3).
pub(crate) fn remembered_limits(params: &TransportParameters) -> [u64; 8] {
    [
        params.initial_max_data,
        params.initial_max_stream_data_bidi_local,
        params.initial_max_stream_data_bidi_remote,
        params.initial_max_stream_data_uni,
        params.initial_max_streams_bidi,
        params.initial_max_streams_uni,
        params.active_connection_id_limit,
        params.max_datagram_frame_size.unwrap_or(0),
    ]
}

/// The [`remembered_limits`] as bytes, to bind tickets to.
pub(crate) fn ticket_limits(params: &TransportParameters) -> Vec<u8> {
    let mut bytes = vec![0; 8 * 8 + 1];
    let mut w = Writer::new(&mut bytes);
    for limit in remembered_limits(params) {
        w.u64(limit);
    }
    w.u8(params.reset_stream_at.into());
    bytes
}

/// RFC 9000 §7.4.
pub(crate) const fn parameter_error(reason: &'static str) -> TransportError {
    TransportError {
        code: TransportErrorCode::TRANSPORT_PARAMETER_ERROR,
        frame_type: 0x06,
        reason,
    }
}
