//! HTTP datagrams (RFC 9297): datagrams that belong to a request.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use squall::DatagramError;
use squall_wire::{Reader, Writer};

use crate::error::Code;
use crate::qlog::Side;
use crate::shared::Shared;
use crate::tunnel::TunnelHandle;
use crate::tunnels::Arrival;

/// The datagrams of a request (RFC 9297 §2): see [`Body::datagrams`](crate::Body::datagrams).
/// Clones share them.
#[derive(Clone, Debug)]
pub struct Datagrams(pub(crate) Arc<TunnelHandle>);

impl Datagrams {
    /// Sends a datagram. If the connection's queue is full, the oldest datagrams in it are dropped.
    ///
    /// # Errors
    /// The datagram is too large, the peer accepts none, or the request or the connection ended.
    pub fn send(&self, payload: &[u8]) -> Result<(), DatagramError> {
        let shared = &self.0.shared;
        if self.0.is_closed() {
            return Err(DatagramError::Closed);
        }
        if shared.has_peer_settings() && !shared.peer_settings().h3_datagram {
            return Err(DatagramError::Unsupported);
        }
        let mut id = [0; 8];
        let mut writer = Writer::new(&mut id);
        // RFC 9297 §2.1: ids of requests are multiples of four.
        writer.varint(self.0.id / 4);
        let len = writer.len();
        let mut datagram = BytesMut::with_capacity(len + payload.len());
        datagram.put_slice(id.get(..len).unwrap_or_default());
        datagram.put_slice(payload);
        shared.connection.send_datagram(datagram.freeze())?;
        shared
            .qlog
            .datagram(Side::Local, self.0.id / 4, payload.len());
        Ok(())
    }

    /// The largest payload that can be sent now, in bytes; `None` if the peer accepts none.
    #[must_use]
    pub fn max_size(&self) -> Option<usize> {
        let size = self.0.shared.connection.max_datagram_size()?;
        size.checked_sub(squall_wire::varint::size(self.0.id / 4))
    }

    /// Waits for the next datagram; `None` when the request or the connection has ended. Unread
    /// datagrams are dropped beyond a limit, oldest first. Cancel-safe.
    pub async fn recv(&self) -> Option<Bytes> {
        poll_fn(|cx| self.0.poll_datagram(cx)).await
    }
}

/// Passes a QUIC datagram on to its request.
///
/// # Errors
/// The datagram names no request (RFC 9297 §2.1).
pub(crate) fn route(shared: &Shared, datagram: &Bytes) -> Result<(), Code> {
    let mut reader = Reader::new(datagram);
    let quarter = reader.varint().map_err(|_| Code::H3_DATAGRAM_ERROR)?;
    if quarter > squall_wire::varint::MAX / 4 {
        return Err(Code::H3_DATAGRAM_ERROR);
    }
    let payload = datagram.slice(reader.position()..);
    shared.qlog.datagram(Side::Remote, quarter, payload.len());
    shared
        .tunnels
        .route(quarter * 4, Arrival::Datagram(payload));
    Ok(())
}
