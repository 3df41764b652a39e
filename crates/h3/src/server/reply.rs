//! Answers that are encoded once and sent many times.

use bytes::Bytes;
use http::Response;
use squall::StreamId;

use crate::frame::{close_frame, kind, open_frame, put_header};
use crate::message::{never_has_body, response_fields};
use crate::priority::Wish;
use crate::qlog::{Frame, Qlog, Side};
use crate::qpack::encode_static;

/// An encoded response, with a body in memory.
///
/// It can be sent on any connection, any number of times, since it does not refer to the dynamic
/// table. Sending it copies neither the body nor, unless it is small, the head.
#[derive(Clone, Debug)]
pub struct Reply {
    /// A HEADERS frame, and the header of a DATA frame if there is a body.
    pub(super) head: Bytes,
    pub(super) body: Bytes,
    /// The stream's priority.
    pub(super) wish: Wish,
}

impl Reply {
    /// Encodes a response. No `date` or `content-length` is added to its fields. The body of a
    /// response that has none, such as 204 and 304, is dropped (RFC 9110 §6.4.1).
    #[must_use]
    pub fn new(response: Response<Bytes>) -> Self {
        let (parts, mut body) = response.into_parts();
        if never_has_body(parts.status) {
            body = Bytes::new();
        }
        let mut bytes = Vec::new();
        let payload = open_frame(&mut bytes);
        let mut wish = Wish::default();
        let fields = response_fields(&parts).inspect(|field| wish.note(field));
        encode_static(fields, &mut bytes);
        let begin = close_frame(&mut bytes, payload, kind::HEADERS as u8);
        if !body.is_empty() {
            put_header(&mut bytes, kind::DATA, body.len() as u64);
        }
        Self {
            head: Bytes::copy_from_slice(bytes.get(begin..).unwrap_or_default()),
            body,
            wish,
        }
    }

    /// Logs the frames of this reply, which answers a request on this stream.
    #[inline]
    pub(super) fn log(&self, qlog: &Qlog, id: StreamId, is_head: bool) {
        if qlog.is_on() {
            let mut reader = squall_wire::Reader::new(&self.head);
            // The frame's type and length, as written by this end.
            if let (Ok(_), Ok(len)) = (reader.varint(), reader.varint()) {
                let from = reader.position();
                let block = self.head.get(from..from.saturating_add(len as usize));
                qlog.static_headers_created(id, block.unwrap_or_default());
            }
            if !is_head && !self.body.is_empty() {
                qlog.frame(Side::Local, id, Frame::Data(self.body.len() as u64));
            }
        }
    }
}
