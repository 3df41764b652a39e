//! Unreliable datagrams (RFC 9221): the verbs, and the frames.

use bytes::Bytes;
use squall_protect::TAG_LEN;
use squall_wire::{TransportError, TransportErrorCode, Writer, frame};

use super::Connection;
use crate::config::MAX_DATAGRAM_FRAME;
use crate::error::DatagramError;
use crate::event::Event;

/// Bytes of a packet number, at most.
const PACKET_NUMBER: usize = 4;

impl Connection {
    /// The largest datagram that can currently be sent, in bytes: what the peer accepts and a
    /// packet of the path's size carries. It changes with the path. `None`: the peer does not
    /// accept datagrams, or has not said so yet (RFC 9221 §3).
    #[must_use]
    pub fn max_datagram_size(&self) -> Option<usize> {
        let frame = usize::try_from(self.peer.max_datagram_frame).unwrap_or(usize::MAX);
        let header = 1 + self.remote_ids.current().len() + PACKET_NUMBER;
        let room = usize::from(self.path.mtu.current()).checked_sub(header + TAG_LEN)?;
        // The frame may need its length.
        let most = frame.min(room);
        most.checked_sub(frame::write::datagram_header_size(Some(most)))
    }

    /// Queues an unreliable datagram. It waits for congestion control in a queue of
    /// `TransportConfig::datagram_send_buffer` bytes.
    ///
    /// # Errors
    /// `Blocked` if the queue is full (`Event::DatagramsWritable` follows), `TooLarge`,
    /// `Unsupported`, `Closed`.
    pub fn send_datagram(&mut self, data: Bytes) -> Result<(), DatagramError> {
        self.check_datagram(&data)?;
        let limit = self.config.datagram_send_buffer;
        if !self.datagrams.has_room(&data, limit) {
            self.datagrams.writer_waits = true;
            return Err(DatagramError::Blocked);
        }
        self.datagrams.send(data, limit);
        Ok(())
    }

    /// Queues a datagram and drops the oldest in the queue to make room: for data that is worthless
    /// when late.
    ///
    /// # Errors
    /// `TooLarge`, `Unsupported`, `Closed`.
    pub fn send_newest_datagram(&mut self, data: Bytes) -> Result<(), DatagramError> {
        self.check_datagram(&data)?;
        let dropped = self.datagrams.send(data, self.config.datagram_send_buffer);
        self.stats.datagram_frames_dropped += dropped;
        Ok(())
    }

    /// The oldest received datagram. `None` if there is none; `Event::DatagramsReadable` follows.
    pub fn read_datagram(&mut self) -> Option<Bytes> {
        self.datagrams.read()
    }

    fn check_datagram(&self, data: &Bytes) -> Result<(), DatagramError> {
        if self.is_closed() {
            return Err(DatagramError::Closed);
        }
        if self.peer.max_datagram_frame == 0 {
            return Err(DatagramError::Unsupported);
        }
        match self.max_datagram_size() {
            Some(most) if data.len() <= most => Ok(()),
            _ => Err(DatagramError::TooLarge),
        }
    }

    /// Takes a DATAGRAM frame.
    pub(super) fn on_datagram(&mut self, ty: u64, data: &[u8]) -> Result<(), TransportError> {
        let limit = self.config.datagram_receive_buffer;
        // RFC 9221 §3.
        if limit == 0 || data.len() as u64 + 1 > MAX_DATAGRAM_FRAME {
            return Err(TransportError {
                code: TransportErrorCode::PROTOCOL_VIOLATION,
                frame_type: ty,
                reason: "a DATAGRAM although none of its size are accepted",
            });
        }
        self.stats.datagram_frames_dropped += self.datagrams.receive(data, limit);
        self.stats.datagram_frames_received += 1;
        if !std::mem::replace(&mut self.datagrams.reader_told, true) {
            self.streams.events.push_back(Event::DatagramsReadable);
        }
        Ok(())
    }

    /// Puts the datagrams that fit into a packet.
    pub(super) fn write_datagrams(&mut self, w: &mut Writer<'_>) {
        while let Some(data) = self.datagrams.peek() {
            let size = frame::write::datagram_header_size(Some(data.len())) + data.len();
            if size > w.remaining() {
                // RFC 9221 §5: the path became smaller than the datagram, which cannot be cut.
                let fits_none = self
                    .max_datagram_size()
                    .is_none_or(|most| data.len() > most);
                if fits_none {
                    self.datagrams.next();
                    self.stats.datagram_frames_dropped += 1;
                    continue;
                }
                return;
            }
            frame::write::datagram_header(w, Some(data.len()));
            w.bytes(data);
            self.datagrams.next();
            self.stats.datagram_frames_sent += 1;
        }
        if std::mem::take(&mut self.datagrams.writer_waits) {
            self.streams.events.push_back(Event::DatagramsWritable);
        }
    }
}
