//! SETTINGS (RFC 9114 §7.2.4): what each end declares about itself, once.

use squall_wire::Reader;

use crate::error::Code;
use crate::frame::put_varint;

/// Identifiers (RFC 9114 §7.2.4.1, RFC 9204 §5, RFC 9220 §3, RFC 9297 §2.1.1,
/// draft-ietf-webtrans-http3).
mod id {
    pub(super) const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
    pub(super) const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
    pub(super) const QPACK_BLOCKED_STREAMS: u64 = 0x07;
    pub(super) const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
    pub(super) const H3_DATAGRAM: u64 = 0x33;
    /// Of draft 2; the value is a flag.
    pub(super) const ENABLE_WEBTRANSPORT: u64 = 0x2b60_3742;
    /// Of drafts 7 to 12; the value is a number of sessions.
    pub(super) const WEBTRANSPORT_MAX_SESSIONS: u64 = 0xc671_706a;
    /// Of draft 15 and later; the value is a flag.
    pub(super) const WT_ENABLED: u64 = 0x2c7c_f000;

    /// HTTP/2 settings that are errors here (RFC 9114 §7.2.4.1).
    pub(super) const fn is_reserved(id: u64) -> bool {
        matches!(id, 0x00 | 0x02 | 0x03 | 0x04 | 0x05)
    }
}

/// Identifiers of the form 0x1f * N + 0x21 mean nothing; they show that unknown ones are ignored
/// (RFC 9114 §7.2.4.1).
const GREASE: u64 = 0x1f * 0x5_9a3c + 0x21;

/// The settings of one end. The defaults apply to a peer whose SETTINGS have not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Bytes of QPACK's dynamic table that this end's decoder allows (RFC 9204 §5).
    pub qpack_max_table_capacity: u64,
    /// How many streams may wait for entries of that table (RFC 9204 §5).
    pub qpack_blocked_streams: u64,
    /// The largest field section that this end accepts, in bytes as RFC 9114 §4.2.2 counts them.
    pub max_field_section_size: Option<u64>,
    /// Whether a server accepts extended CONNECT (RFC 9220 §3).
    pub enable_connect_protocol: bool,
    /// Whether this end accepts HTTP datagrams (RFC 9297 §2.1.1).
    pub h3_datagram: bool,
    /// How many WebTransport sessions this end accepts at a time, in any of the drafts that
    /// browsers speak (draft-ietf-webtrans-http3).
    pub webtransport_max_sessions: u64,
    /// Whether these are sessions of draft 15 and later only, whose requests name another protocol.
    pub(crate) only_new_webtransport: bool,
}

impl Settings {
    /// The values before SETTINGS have arrived.
    pub(crate) const INITIAL: Self = Self {
        qpack_max_table_capacity: 0,
        qpack_blocked_streams: 0,
        max_field_section_size: None,
        enable_connect_protocol: false,
        h3_datagram: false,
        webtransport_max_sessions: 0,
        only_new_webtransport: false,
    };

    /// Reads the payload of a SETTINGS frame.
    ///
    /// # Errors
    /// The payload is cut short, an identifier is repeated or forbidden, or a value is forbidden.
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, Code> {
        let mut settings = Self::INITIAL;
        let (mut old_webtransport, mut new_webtransport) = (0, 0);
        let mut seen = Vec::new();
        let mut reader = Reader::new(payload);
        while !reader.is_empty() {
            let mut varint = || reader.varint().map_err(|_| Code::H3_FRAME_ERROR);
            let (id, value) = (varint()?, varint()?);
            if id::is_reserved(id) {
                return Err(Code::H3_SETTINGS_ERROR);
            }
            seen.push(id);
            match id {
                id::QPACK_MAX_TABLE_CAPACITY => settings.qpack_max_table_capacity = value,
                id::QPACK_BLOCKED_STREAMS => settings.qpack_blocked_streams = value,
                id::MAX_FIELD_SECTION_SIZE => settings.max_field_section_size = Some(value),
                id::ENABLE_CONNECT_PROTOCOL => settings.enable_connect_protocol = flag(value)?,
                id::H3_DATAGRAM => settings.h3_datagram = flag(value)?,
                id::WEBTRANSPORT_MAX_SESSIONS | id::ENABLE_WEBTRANSPORT => {
                    old_webtransport = value.max(old_webtransport);
                }
                id::WT_ENABLED => new_webtransport = value,
                _ => {}
            }
        }
        settings.webtransport_max_sessions = old_webtransport.max(new_webtransport);
        settings.only_new_webtransport = old_webtransport == 0 && new_webtransport > 0;
        // Sorted: comparing each with each would take time quadratic in a hostile peer's bytes.
        seen.sort_unstable();
        if seen.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Code::H3_SETTINGS_ERROR);
        }
        Ok(settings)
    }

    /// Appends the payload of a SETTINGS frame.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |id, value| {
            put_varint(out, id);
            put_varint(out, value);
        };
        put(id::QPACK_MAX_TABLE_CAPACITY, self.qpack_max_table_capacity);
        put(id::QPACK_BLOCKED_STREAMS, self.qpack_blocked_streams);
        if let Some(size) = self.max_field_section_size {
            put(id::MAX_FIELD_SECTION_SIZE, size);
        }
        if self.enable_connect_protocol {
            put(id::ENABLE_CONNECT_PROTOCOL, 1);
        }
        if self.h3_datagram {
            put(id::H3_DATAGRAM, 1);
        }
        if self.webtransport_max_sessions > 0 {
            put(id::ENABLE_WEBTRANSPORT, 1);
            put(
                id::WEBTRANSPORT_MAX_SESSIONS,
                self.webtransport_max_sessions,
            );
            put(id::WT_ENABLED, 1);
        }
        put(GREASE, 0x5a);
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::INITIAL
    }
}

/// A setting that is 0 or 1 (RFC 9220 §3, RFC 9297 §2.1.1).
fn flag(value: u64) -> Result<bool, Code> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Code::H3_SETTINGS_ERROR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_round_trip() {
        for settings in [
            Settings::INITIAL,
            Settings {
                qpack_max_table_capacity: 4096,
                qpack_blocked_streams: 100,
                max_field_section_size: Some(1 << 20),
                enable_connect_protocol: true,
                h3_datagram: true,
                webtransport_max_sessions: 3,
                only_new_webtransport: false,
            },
        ] {
            let mut payload = Vec::new();
            settings.encode(&mut payload);
            assert_eq!(Settings::parse(&payload), Ok(settings));
        }
    }

    // test: RFC 9114 §7.2.4, §7.2.4.1; RFC 9220 §3; RFC 9297 §2.1.1
    #[test]
    fn invalid_settings_have_their_error() {
        for (payload, code) in [
            (&[1, 0, 1, 0][..], Code::H3_SETTINGS_ERROR),
            (&[0x21, 0, 6, 0, 0x21, 1], Code::H3_SETTINGS_ERROR),
            (&[0, 0], Code::H3_SETTINGS_ERROR),
            (&[2, 0], Code::H3_SETTINGS_ERROR),
            (&[3, 0], Code::H3_SETTINGS_ERROR),
            (&[4, 0], Code::H3_SETTINGS_ERROR),
            (&[5, 0], Code::H3_SETTINGS_ERROR),
            (&[8, 2], Code::H3_SETTINGS_ERROR),
            (&[0x33, 2], Code::H3_SETTINGS_ERROR),
            (&[6], Code::H3_FRAME_ERROR),
            (&[6, 0x40], Code::H3_FRAME_ERROR),
        ] {
            assert_eq!(Settings::parse(payload), Err(code), "{payload:?}");
        }
    }

    // test: draft-ietf-webtrans-http3 §3.2, §7.1
    #[test]
    fn settings_of_different_webtransport_drafts_are_distinguished() {
        let mut payload = Vec::new();
        put_varint(&mut payload, id::WT_ENABLED);
        put_varint(&mut payload, 1);
        let settings = Settings::parse(&payload).unwrap();
        assert_eq!(settings.webtransport_max_sessions, 1);
        assert!(settings.only_new_webtransport);
        put_varint(&mut payload, id::WEBTRANSPORT_MAX_SESSIONS);
        put_varint(&mut payload, 4);
        let settings = Settings::parse(&payload).unwrap();
        assert_eq!(settings.webtransport_max_sessions, 4);
        assert!(!settings.only_new_webtransport);
    }

    #[test]
    fn unknown_settings_are_ignored() {
        assert_eq!(
            Settings::parse(&[0x21, 5, 0x40, 0x99, 0x01]),
            Ok(Settings::INITIAL)
        );
    }
}
