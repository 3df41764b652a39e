//! The peer's control stream (RFC 9114 §6.2.1, §7.2): which frames may come, and what they mean.

use bytes::Bytes;
use squall_wire::Reader;

use crate::error::Code;
use crate::frame::{Fate, FrameReader, Piece, kind};
use crate::settings::Settings;

/// The longest payload of a frame on the control stream. SETTINGS of a dozen pairs and a
/// PRIORITY_UPDATE take a fraction of this.
const MAX_PAYLOAD: u64 = 16 * 1024;

/// An event on the peer's control stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlEvent {
    /// Its settings; always first, and once.
    Settings(Settings),
    /// Requests from this stream id on are not processed (to a client); pushes are not wanted (to a
    /// server).
    GoAway(u64),
    /// A request stream's new `priority` field value (RFC 9218 §7.1).
    Priority(u64, Bytes),
}

/// Reads a control stream.
#[derive(Debug)]
pub(crate) struct ControlReader {
    /// Whether this end is the server.
    is_server: bool,
    frames: FrameReader,
    rules: Rules,
}

/// What has arrived so far, as far as it restricts what may follow.
#[derive(Debug, Default)]
struct Rules {
    settings: bool,
    goaway: Option<u64>,
    max_push_id: Option<u64>,
}

impl ControlReader {
    pub(crate) fn new(is_server: bool) -> Self {
        Self {
            is_server,
            frames: FrameReader::new(),
            rules: Rules::default(),
        }
    }

    /// Adds the stream's next bytes. [`next`](Self::next) must have returned `None` before.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        self.frames.push(chunk);
    }

    /// The next event; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The peer broke a rule: the connection is to be closed with this code.
    pub(crate) fn next(&mut self) -> Result<Option<ControlEvent>, Code> {
        let is_server = self.is_server;
        loop {
            let has_settings = self.rules.settings;
            let piece = self
                .frames
                .next(|kind, len| fate(is_server, has_settings, kind, len))?;
            let Some(Piece::Frame(kind, payload)) = piece else {
                return Ok(None);
            };
            if let Some(event) = self.rules.on_frame(is_server, kind, &payload)? {
                return Ok(Some(event));
            }
        }
    }
}

/// Which frames are expected: RFC 9114 §7.2, table 1.
fn fate(is_server: bool, has_settings: bool, kind: u64, len: u64) -> Result<Fate, Code> {
    if !has_settings && kind != kind::SETTINGS {
        return Err(Code::H3_MISSING_SETTINGS);
    }
    let expected = match kind {
        kind::SETTINGS => !has_settings,
        kind::GOAWAY | kind::CANCEL_PUSH => true,
        kind::MAX_PUSH_ID | kind::PRIORITY_UPDATE_REQUEST | kind::PRIORITY_UPDATE_PUSH => is_server,
        kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => false,
        kind if kind::is_reserved(kind) => false,
        _ => return Ok(Fate::Skip),
    };
    if !expected {
        return Err(Code::H3_FRAME_UNEXPECTED);
    }
    if len > MAX_PAYLOAD {
        return Err(Code::H3_EXCESSIVE_LOAD);
    }
    Ok(Fate::Whole)
}

impl Rules {
    fn on_frame(
        &mut self,
        is_server: bool,
        kind: u64,
        payload: &Bytes,
    ) -> Result<Option<ControlEvent>, Code> {
        match kind {
            kind::SETTINGS => {
                let settings = Settings::parse(payload)?;
                self.settings = true;
                return Ok(Some(ControlEvent::Settings(settings)));
            }
            kind::GOAWAY => {
                let id = only_varint(payload)?;
                // RFC 9114 §5.2: clients get ids of requests, none of them larger than the last.
                let is_request = id & 3 == 0;
                if !is_server && !is_request || self.goaway.is_some_and(|last| id > last) {
                    return Err(Code::H3_ID_ERROR);
                }
                self.goaway = Some(id);
                return Ok(Some(ControlEvent::GoAway(id)));
            }
            kind::MAX_PUSH_ID => {
                let id = only_varint(payload)?;
                if self.max_push_id.is_some_and(|last| id < last) {
                    return Err(Code::H3_ID_ERROR);
                }
                self.max_push_id = Some(id);
            }
            kind::CANCEL_PUSH => {
                // RFC 9114 §7.2.3: there is no push to cancel. This end neither promises one nor
                // allows one.
                only_varint(payload)?;
                return Err(Code::H3_ID_ERROR);
            }
            kind::PRIORITY_UPDATE_REQUEST => {
                let mut reader = Reader::new(payload);
                let id = reader.varint().map_err(|_| Code::H3_FRAME_ERROR)?;
                if id & 3 != 0 {
                    return Err(Code::H3_ID_ERROR);
                }
                let value = payload.slice(reader.position()..);
                return Ok(Some(ControlEvent::Priority(id, value)));
            }
            kind::PRIORITY_UPDATE_PUSH => {
                let mut reader = Reader::new(payload);
                reader.varint().map_err(|_| Code::H3_FRAME_ERROR)?;
                // RFC 9218 §7.2: no push with this id was promised.
                return Err(Code::H3_ID_ERROR);
            }
            _ => {}
        }
        Ok(None)
    }
}

/// A payload that is one variable-length integer.
fn only_varint(payload: &[u8]) -> Result<u64, Code> {
    let mut reader = Reader::new(payload);
    let value = reader.varint().map_err(|_| Code::H3_FRAME_ERROR)?;
    if reader.is_empty() {
        Ok(value)
    } else {
        Err(Code::H3_FRAME_ERROR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::put_frame;

    /// Type and payload.
    type Frame<'a> = (u64, &'a [u8]);

    const SETTINGS: Frame<'_> = (kind::SETTINGS, &[]);

    /// The events of a control stream of these frames.
    fn read(is_server: bool, frames: &[Frame<'_>]) -> Result<Vec<ControlEvent>, Code> {
        let mut bytes = Vec::new();
        for (kind, payload) in frames {
            put_frame(&mut bytes, *kind, payload);
        }
        let mut reader = ControlReader::new(is_server);
        let mut events = Vec::new();
        for chunk in bytes.chunks(3) {
            reader.push(Bytes::copy_from_slice(chunk));
            while let Some(event) = reader.next()? {
                events.push(event);
            }
        }
        Ok(events)
    }

    // test: RFC 9114 §6.2.1, §7.2; RFC 9218 §7
    #[test]
    fn every_violation_on_the_control_stream_has_its_error() {
        let both = [true, false];
        let server = [true];
        let client = [false];
        let cases: &[(&[bool], &[Frame<'_>], Code)] = &[
            (&both, &[(kind::GOAWAY, &[0])], Code::H3_MISSING_SETTINGS),
            (&both, &[(0x21, &[])], Code::H3_MISSING_SETTINGS),
            (&both, &[SETTINGS, SETTINGS], Code::H3_FRAME_UNEXPECTED),
            (
                &both,
                &[SETTINGS, (kind::DATA, &[])],
                Code::H3_FRAME_UNEXPECTED,
            ),
            (
                &both,
                &[SETTINGS, (kind::HEADERS, &[])],
                Code::H3_FRAME_UNEXPECTED,
            ),
            (
                &both,
                &[SETTINGS, (kind::PUSH_PROMISE, &[])],
                Code::H3_FRAME_UNEXPECTED,
            ),
            (&both, &[SETTINGS, (2, &[])], Code::H3_FRAME_UNEXPECTED),
            (&both, &[SETTINGS, (6, &[])], Code::H3_FRAME_UNEXPECTED),
            (&both, &[SETTINGS, (8, &[])], Code::H3_FRAME_UNEXPECTED),
            (&both, &[SETTINGS, (9, &[])], Code::H3_FRAME_UNEXPECTED),
            (
                &both,
                &[SETTINGS, (kind::GOAWAY, &[])],
                Code::H3_FRAME_ERROR,
            ),
            (
                &both,
                &[SETTINGS, (kind::GOAWAY, &[0, 0])],
                Code::H3_FRAME_ERROR,
            ),
            (
                &both,
                &[SETTINGS, (kind::GOAWAY, &[4]), (kind::GOAWAY, &[8])],
                Code::H3_ID_ERROR,
            ),
            (
                &client,
                &[SETTINGS, (kind::GOAWAY, &[1])],
                Code::H3_ID_ERROR,
            ),
            (
                &both,
                &[SETTINGS, (kind::CANCEL_PUSH, &[0])],
                Code::H3_ID_ERROR,
            ),
            (
                &both,
                &[SETTINGS, (kind::CANCEL_PUSH, &[])],
                Code::H3_FRAME_ERROR,
            ),
            (
                &client,
                &[SETTINGS, (kind::MAX_PUSH_ID, &[0])],
                Code::H3_FRAME_UNEXPECTED,
            ),
            (
                &server,
                &[SETTINGS, (kind::MAX_PUSH_ID, &[])],
                Code::H3_FRAME_ERROR,
            ),
            (
                &server,
                &[
                    SETTINGS,
                    (kind::MAX_PUSH_ID, &[4]),
                    (kind::MAX_PUSH_ID, &[3]),
                ],
                Code::H3_ID_ERROR,
            ),
            (
                &client,
                &[SETTINGS, (kind::PRIORITY_UPDATE_REQUEST, &[0])],
                Code::H3_FRAME_UNEXPECTED,
            ),
            (
                &server,
                &[SETTINGS, (kind::PRIORITY_UPDATE_REQUEST, &[])],
                Code::H3_FRAME_ERROR,
            ),
            (
                &server,
                &[SETTINGS, (kind::PRIORITY_UPDATE_REQUEST, &[2])],
                Code::H3_ID_ERROR,
            ),
            (
                &server,
                &[SETTINGS, (kind::PRIORITY_UPDATE_PUSH, &[2])],
                Code::H3_ID_ERROR,
            ),
            (
                &both,
                &[(kind::SETTINGS, &[0; 20_000])],
                Code::H3_EXCESSIVE_LOAD,
            ),
        ];
        for (sides, frames, code) in cases {
            for side in *sides {
                assert_eq!(read(*side, frames), Err(*code), "{side} {frames:?}");
            }
        }
    }

    #[test]
    fn allowed_frames_become_events() {
        let frames: &[Frame<'_>] = &[
            SETTINGS,
            (0x21, &[0; 30_000]),
            (kind::MAX_PUSH_ID, &[1]),
            (kind::MAX_PUSH_ID, &[1]),
            (kind::GOAWAY, &[8]),
            (kind::GOAWAY, &[8]),
            (kind::PRIORITY_UPDATE_REQUEST, b"\x04u=1"),
        ];
        let events = [
            ControlEvent::Settings(Settings::INITIAL),
            ControlEvent::GoAway(8),
            ControlEvent::GoAway(8),
            ControlEvent::Priority(4, Bytes::from_static(b"u=1")),
        ];
        assert_eq!(read(true, frames), Ok(events.to_vec()));
    }
}
