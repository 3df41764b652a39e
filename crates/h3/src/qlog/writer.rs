//! Events as JSON.

use serde_json::{Value, json};
use squall::{Connection, StreamId};

use super::{Frame, Side};
use crate::frame::stream_type;
use crate::qpack::{Decoded, Decoder, Field, FieldSection};
use crate::settings::Settings;

/// Fields whose values are secrets of the user. A log names them but omits their values.
const SECRET: [&[u8]; 4] = [
    b"authorization",
    b"cookie",
    b"proxy-authorization",
    b"set-cookie",
];

/// The log of a connection; `None` if it is not logged.
#[derive(Debug)]
pub(crate) struct Qlog(Option<Connection>);

/// The fields of a section being encoded, if they are logged.
pub(crate) struct Fields(Option<Vec<Value>>);

impl Fields {
    #[inline]
    pub(crate) fn push(&mut self, field: &Field<'_>) {
        if let Some(fields) = &mut self.0 {
            fields.push(described(field.name, field.value, field.sensitive));
        }
    }
}

impl Qlog {
    pub(crate) fn of(connection: &Connection) -> Self {
        Self(connection.has_qlog().then(|| connection.clone()))
    }

    /// Whether anything is written.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    fn event(&self, name: &str, data: &Value) {
        if let Some(connection) = &self.0 {
            connection.log_event(name, &data.to_string());
        }
    }

    pub(crate) fn parameters_set(&self, initiator: Side, settings: &Settings) {
        if self.0.is_none() {
            return;
        }
        let mut data = json!({
            "initiator": name_of_side(initiator),
            "max_table_capacity": settings.qpack_max_table_capacity,
            "blocked_streams_count": settings.qpack_blocked_streams,
            "extended_connect": u16::from(settings.enable_connect_protocol),
            "h3_datagram": u16::from(settings.h3_datagram),
        });
        if let Some(size) = settings.max_field_section_size {
            data["max_field_section_size"] = size.into();
        }
        self.event("http3:parameters_set", &data);
    }

    /// `stream_type` is the integer that the stream begins with.
    pub(crate) fn stream_type_set(&self, initiator: Side, id: StreamId, stream_type: u64) {
        if self.0.is_none() {
            return;
        }
        let name = match stream_type {
            stream_type::CONTROL => "control",
            stream_type::PUSH => "push",
            stream_type::QPACK_ENCODER => "qpack_encode",
            stream_type::QPACK_DECODER => "qpack_decode",
            // RFC 9114 §6.2.3.
            reserved if reserved >= 0x21 && (reserved - 0x21) % 0x1f == 0 => "reserved",
            _ => "unknown",
        };
        let mut data = json!({
            "initiator": name_of_side(initiator),
            "stream_id": id.0,
            "stream_type": name,
        });
        if name == "unknown" {
            data["stream_type_bytes"] = stream_type.into();
        }
        self.event("http3:stream_type_set", &data);
    }

    #[inline]
    pub(crate) fn frame(&self, side: Side, id: StreamId, frame: Frame<'_>) {
        if self.0.is_some() {
            let frame = match frame {
                Frame::Data(len) => {
                    json!({ "frame_type": "data", "raw": { "payload_length": len } })
                }
                Frame::GoAway(id) => json!({ "frame_type": "goaway", "id": id }),
                Frame::PriorityUpdate(id, value) => json!({
                    "frame_type": "priority_update",
                    "stream_id": id,
                    "priority_field_value": String::from_utf8_lossy(value),
                }),
                Frame::Settings(settings) => described_settings(settings),
            };
            self.frame_event(side, id, &frame);
        }
    }

    /// A field section from the peer has been decoded.
    #[inline]
    pub(crate) fn headers_parsed(&self, id: StreamId, section: &FieldSection) {
        if self.0.is_some() {
            self.section(Side::Remote, id, section);
        }
    }

    /// A pre-encoded HEADERS frame is sent. It does not refer to the dynamic table.
    #[inline]
    pub(crate) fn static_headers_created(&self, id: StreamId, block: &[u8]) {
        if self.0.is_some() {
            let mut section = FieldSection::new();
            let decoded = Decoder::new(0, 0).decode(id.0, block, usize::MAX, &mut section);
            if let Ok(Decoded::Done) = decoded {
                self.section(Side::Local, id, &section);
            }
        }
    }

    /// Collects the fields of a section that is about to be encoded.
    #[inline]
    pub(crate) fn fields(&self) -> Fields {
        Fields(self.0.is_some().then(Vec::new))
    }

    #[inline]
    pub(crate) fn headers_created(&self, id: StreamId, fields: Fields) {
        if let Some(fields) = fields.0 {
            self.headers(Side::Local, id, fields.into_iter());
        }
    }

    fn section(&self, side: Side, id: StreamId, section: &FieldSection) {
        let fields = section.iter();
        let fields = fields.map(|line| described(line.name, line.value, line.never_indexed));
        self.headers(side, id, fields);
    }

    fn headers(&self, side: Side, id: StreamId, fields: impl Iterator<Item = Value>) {
        let fields: Vec<Value> = fields.collect();
        let frame = json!({ "frame_type": "headers", "headers": fields });
        self.frame_event(side, id, &frame);
    }

    fn frame_event(&self, side: Side, id: StreamId, frame: &Value) {
        let name = match side {
            Side::Local => "http3:frame_created",
            Side::Remote => "http3:frame_parsed",
        };
        self.event(name, &json!({ "stream_id": id.0, "frame": frame }));
    }

    /// The client gave a request a priority, by a field or by a frame.
    #[inline]
    pub(crate) fn priority_updated(&self, id: StreamId, value: &[u8]) {
        if self.0.is_some() {
            let data = json!({
                "stream_id": id.0,
                "new": String::from_utf8_lossy(value),
                "trigger": "client_signal_received",
                "reason": "client_signal_only",
            });
            self.event("http3:priority_updated", &data);
        }
    }

    #[inline]
    pub(crate) fn datagram(&self, side: Side, quarter_stream_id: u64, len: usize) {
        if self.0.is_some() {
            let name = match side {
                Side::Local => "http3:datagram_created",
                Side::Remote => "http3:datagram_parsed",
            };
            let data = json!({
                "quarter_stream_id": quarter_stream_id,
                "raw": { "payload_length": len },
            });
            self.event(name, &data);
        }
    }
}

/// Draft §4.2.4, without the settings that have no meaning for this end.
fn described_settings(settings: &Settings) -> Value {
    let all = [
        (
            "settings_qpack_max_table_capacity",
            Some(settings.qpack_max_table_capacity),
        ),
        (
            "settings_max_field_section_size",
            settings.max_field_section_size,
        ),
        (
            "settings_qpack_blocked_streams",
            Some(settings.qpack_blocked_streams),
        ),
        (
            "settings_enable_connect_protocol",
            settings.enable_connect_protocol.then_some(1),
        ),
        ("settings_h3_datagram", settings.h3_datagram.then_some(1)),
    ];
    let all: Vec<Value> = all
        .into_iter()
        .filter_map(|(name, value)| Some(json!({ "name": name, "value": value? })))
        .collect();
    json!({ "frame_type": "settings", "settings": all })
}

const fn name_of_side(side: Side) -> &'static str {
    match side {
        Side::Local => "local",
        Side::Remote => "remote",
    }
}

/// Draft §4.2.2: as text if it is text, else as hexadecimal digits.
fn described(name: &[u8], value: &[u8], sensitive: bool) -> Value {
    let mut described = serde_json::Map::new();
    let mut put = |name: &str, bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => described.insert(name.to_owned(), text.into()),
        Err(_) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            described.insert(format!("{name}_bytes"), digits.into())
        }
    };
    put("name", name);
    if !sensitive && !SECRET.contains(&name) {
        put("value", value);
    }
    described.into()
}
