//! The owner's calls, except for the two trips, time, closing and migrating.

use std::collections::VecDeque;
#[cfg(feature = "qlog")]
use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use rustls::pki_types::CertificateDer;
use squall_protect::TAG_LEN;
use squall_wire::{ConnectionId, Direction, Path, Side, StreamId, Transmit, frame, varint};

use super::handshake::keyring::KeyRing;
use super::{Connection, State, Stats};
use crate::error::{DatagramError, ExportError, ReadError, WriteError};
use crate::event::{EndpointEvent, Event};
use crate::observation::Observation;
#[cfg(feature = "qlog")]
use crate::qlog::Qlog;
use crate::stream::chunk_pool::ChunkPool;
use crate::stream::{Accepted, Priority, ReachedLimit};
use crate::time::Time;

/// Heap memory of an idle connection that is not counted below: keys, path validation, connection
/// ids here and at the endpoint, ACK ranges. Measured (`crates/core/tests/memory.rs`).
const FIXED: usize = 5 * 1024;
/// Bytes of a packet number, at most.
const PACKET_NUMBER: usize = 4;

impl Connection {
    // ---- streams --------------------------------------------------------------------------------

    /// Opens a stream. Returns `None` at the peer's stream limit; `Event::StreamsAvailable` follows
    /// when the limit rises.
    pub fn open(&mut self, direction: Direction) -> Option<StreamId> {
        if self.is_closed() {
            None
        } else {
            self.streams.open(direction)
        }
    }

    /// The next stream opened by the peer, even if the peer has closed it since.
    pub fn accept(&mut self, direction: Direction) -> Option<StreamId> {
        self.streams.accept(direction)
    }

    /// As [`accept`](Self::accept), for a caller that reads the stream before it waits for an
    /// event: `Event::Readable` does not report what has already arrived, only what arrives after a
    /// read has returned nothing. A message of up to 2 KiB that has arrived to its end, on a
    /// bidirectional stream, is read at once, since the caller is about to read it anyway.
    pub fn accept_and_read(&mut self, direction: Direction) -> Option<Accepted> {
        self.streams.accept_and_read(direction)
    }

    /// Changes how many streams of a direction the peer may have open at the same time, from
    /// [`max_concurrent_bidi_streams`](crate::TransportConfig::max_concurrent_bidi_streams) or its
    /// counterpart. A higher limit is announced at once (MAX_STREAMS, RFC 9000 §19.11). A lower one
    /// takes effect as streams end, since credit cannot be taken back from the peer.
    pub fn set_max_concurrent_streams(&mut self, direction: Direction, limit: u64) {
        self.streams.set_max_concurrent(direction, limit);
    }

    /// Changes the largest flow-control credit of the connection, in bytes, from
    /// [`receive_window`](field@crate::TransportConfig::receive_window). Credit that the peer
    /// already has remains valid.
    pub fn set_receive_window(&mut self, bytes: u64) {
        self.streams.set_receive_window(bytes.min(varint::MAX));
    }

    /// Changes how much the send buffers of all streams may hold together, in bytes, from
    /// [`send_window`](field@crate::TransportConfig::send_window). Data already buffered stays.
    pub fn set_send_window(&mut self, bytes: u64) {
        self.streams.set_send_window(bytes);
    }

    /// Swaps the pool from which received stream data and datagrams take their memory. An owner of
    /// many connections has one pool, lends it for the duration of a call of
    /// [`receive`](Self::receive), and absorbs the chunks that readers return in between; otherwise
    /// every connection keeps the most that it ever needed.
    pub const fn swap_chunks(&mut self, pool: &mut ChunkPool) {
        self.streams.swap_chunks(pool);
    }

    /// The chunks that readers have returned since the last swap, if any.
    pub fn spare_chunks(&mut self) -> Option<&mut ChunkPool> {
        self.streams.spare_chunks()
    }

    /// Takes from the front of `data` as much as the peer's credit for the stream and the send
    /// buffer allow: at least one byte, or an error. The bytes are not copied: packets are sealed
    /// from where they lie. Small writes are copied, which costs less: up to 256 bytes after data
    /// that waits, up to 64 on their own.
    ///
    /// # Errors
    /// `Blocked` when there is no credit or the buffer is full (`Event::Writable` follows),
    /// `Stopped` after STOP_SENDING, `Closed`.
    pub fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        self.duties.answer_due = true;
        self.streams.write(id, data)
    }

    /// As [`write`](Self::write), but copies the bytes that it takes from the front of `data`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_copy(&mut self, id: StreamId, data: &[u8]) -> Result<usize, WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        self.duties.answer_due = true;
        self.streams.write_copy(id, data)
    }

    /// Whether at most `bytes` of the data written to the stream were never sent. A writer that
    /// fetches its data only then keeps little in memory, however large the send window is.
    ///
    /// # Errors
    /// `Blocked` if there are more (`Event::Writable` follows), `Stopped`, `Closed`.
    pub fn await_unsent(&mut self, id: StreamId, bytes: u64) -> Result<(), WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        self.streams.await_unsent(id, bytes)
    }

    /// The peer's limit that the stream has reached: no more of it can be sent until the peer
    /// grants credit (RFC 9000 §4.1). Two equal answers mean that it granted none in between to a
    /// stream whose writer waited. `None` also for a stream that has ended.
    pub fn reached_limit(&mut self, id: StreamId) -> Option<ReachedLimit> {
        self.streams.reached_limit(id)
    }

    /// Ends a stream after the data written so far (RFC 9000 §3.1). `Event::Finished` follows when
    /// the peer has acknowledged everything.
    ///
    /// # Errors
    /// `Stopped`, `Closed`.
    pub fn finish(&mut self, id: StreamId) -> Result<(), WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        self.duties.answer_due = true;
        self.streams.finish(id)
    }

    /// Resets the sending part of a stream: sends RESET_STREAM with the application's `code`, below
    /// 2^62 (RFC 9000 §19.4).
    ///
    /// # Errors
    /// `Closed` if nothing is left to reset.
    pub fn reset(&mut self, id: StreamId, code: u64) -> Result<(), WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        self.streams.reset(id, code.min(squall_wire::varint::MAX))
    }

    /// Resets a stream whose owner dropped it without ending it: the written data may be an
    /// incomplete message, which must not look complete to the peer. `code` defaults to
    /// [`reset_on_drop_code`](crate::TransportConfig::reset_on_drop_code). Returns how many streams
    /// of the connection have ended this way, or `None` if there was nothing left to reset.
    pub fn reset_dropped(&mut self, id: StreamId, code: Option<u64>) -> Option<u64> {
        self.reset(id, code.unwrap_or(self.config.reset_on_drop_code))
            .ok()?;
        self.stats.streams_reset_on_drop += 1;
        Some(self.stats.streams_reset_on_drop)
    }

    /// Resets a stream except for its first `reliable` bytes: sends RESET_STREAM_AT with the
    /// application's `code`, below 2^62, and the peer still receives those bytes
    /// (draft-ietf-quic-reliable-stream-reset). A peer without support for the frame receives
    /// RESET_STREAM once it has acknowledged them. May be repeated with a smaller `reliable`.
    ///
    /// # Errors
    /// `Closed` if nothing is left to reset.
    pub fn reset_at(&mut self, id: StreamId, code: u64, reliable: u64) -> Result<(), WriteError> {
        if self.is_closed() {
            return Err(WriteError::Closed);
        }
        let code = code.min(squall_wire::varint::MAX);
        self.streams.reset_at(id, code, reliable)
    }

    /// The stream's priority among the streams that have data to send; `None` if the stream no
    /// longer sends anything.
    pub fn priority(&mut self, id: StreamId) -> Option<Priority> {
        self.streams.priority(id)
    }

    /// Changes the stream's priority, from the next packet on.
    ///
    /// # Errors
    /// `Closed` if the stream no longer sends anything.
    pub fn set_priority(&mut self, id: StreamId, priority: Priority) -> Result<(), WriteError> {
        let known = self.streams.set_priority(id, priority);
        known.then_some(()).ok_or(WriteError::Closed)
    }

    /// Marks a stream as background: it stays open whether or not the application expects anything
    /// on it, like HTTP/3's control streams. A client sends PINGs to a server that has gone quiet
    /// only while there are other streams. No effect once the stream has ended.
    pub fn set_background(&mut self, id: StreamId) {
        self.streams.set_background(id);
    }

    /// The next bytes in order, at most `max`, without a copy; `None` at the end of the stream.
    /// Reading gives the peer credit to send more.
    ///
    /// # Errors
    /// `Blocked` if no data is available (`Event::Readable` follows), `Reset`, `Closed`,
    /// `IllegalOrderedRead` after [`read_unordered`](Self::read_unordered).
    pub fn read(&mut self, id: StreamId, max: usize) -> Result<Option<Bytes>, ReadError> {
        self.streams.read(id, max)
    }

    /// Takes the end of a stream if nothing else is left to read, so that the reader need not ask
    /// again: [`read`](Self::read) would return `None`. Returns what [`is_early`](Self::is_early)
    /// said before, since the stream may be gone now; `None` if there is no end to take.
    pub fn read_end(&mut self, id: StreamId) -> Option<bool> {
        self.streams.read_end(id)
    }

    /// Reads the bytes of a stream that arrived first, at most `max`, whatever is missing before
    /// them, with their offset; `None` at the end of the stream. Every byte is returned once. From
    /// the first call on, the stream can no longer be read in order.
    ///
    /// # Errors
    /// `Blocked` if no data is available (`Event::Readable` follows), `Reset`, `Closed`.
    pub fn read_unordered(
        &mut self,
        id: StreamId,
        max: usize,
    ) -> Result<Option<(u64, Bytes)>, ReadError> {
        self.streams.read_unordered(id, max)
    }

    /// The code with which the peer reset a stream; `None` if all its data has arrived or it was
    /// stopped, so that a reset no longer means anything. Data that has arrived can still be read.
    ///
    /// # Errors
    /// `Blocked` while a reset may come (`Event::Readable` follows when that is decided), `Closed`.
    pub fn received_reset(&mut self, id: StreamId) -> Result<Option<u64>, ReadError> {
        self.streams.received_reset(id)
    }

    /// Stops reading: sends STOP_SENDING with the application's `code` (RFC 9000 §19.5).
    ///
    /// # Errors
    /// `Closed` if there is nothing to stop.
    pub fn stop_sending(&mut self, id: StreamId, code: u64) -> Result<(), ReadError> {
        if self.is_closed() {
            return Err(ReadError::Closed);
        }
        self.streams
            .stop_sending(id, code.min(squall_wire::varint::MAX))
    }

    /// Requests an acknowledgement from the peer: sends a PING in the next packet (RFC 9000 §19.2).
    pub fn ping(&mut self) {
        self.duties.ping = !self.is_closed();
    }

    // ---- state and counters ---------------------------------------------------------------------

    /// The next event for the application.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.streams.events.pop_front()
    }

    /// The next event for the endpoint; the owner passes it to `Endpoint::apply`.
    pub fn poll_endpoint_event(&mut self) -> Option<EndpointEvent> {
        self.endpoint.events.pop_front()
    }

    /// Announces that the application is about to close the connection: from now on,
    /// [`is_delivering`](Self::is_delivering) leaves out streams that are finished later. May be
    /// repeated; the last call counts.
    pub fn prepare_to_close(&mut self) {
        self.streams.prepare_to_close();
    }

    /// Whether a finished stream has data, or its end, that the peer has not acknowledged: closing
    /// now would lose it. After [`prepare_to_close`](Self::prepare_to_close), only streams that
    /// were finished before it count. This reads two fields. Call it after polling all events,
    /// because a stream may end without an event of its own.
    #[must_use]
    pub const fn is_delivering(&self) -> bool {
        self.streams.is_delivering()
    }

    /// The connection id to which the client's first packet was addressed; both ends' logs identify
    /// the connection by it.
    #[must_use]
    pub const fn original_destination_id(&self) -> ConnectionId {
        self.handshake.original_dcid
    }

    /// Whether a method left something to transmit. Cheap; on `true`, call `transmit`.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        match &self.state {
            State::Closing(close) => close.due,
            State::Draining | State::Drained => false,
            State::Handshaking | State::Established => {
                self.duties.ping
                    || self.streams.wants_to_send()
                    || self.datagrams.wants_to_send()
                    || (self.duties.large_packets
                        && self.handshake.confirmed
                        && self.paths.active.mtu.has_planned())
            }
        }
    }

    /// When `on_timeout` must be called next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        self.clock.next()
    }

    /// Whether the TLS handshake is still in progress.
    #[must_use]
    pub const fn is_handshaking(&self) -> bool {
        matches!(self.state, State::Handshaking)
    }

    /// Whether the connection has ended or is closing.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(
            self.state,
            State::Closing(_) | State::Draining | State::Drained
        )
    }

    /// Whether the peer has closed the connection, or [`take_closing`](Self::take_closing) has
    /// taken the answer to later packets: nothing more is sent, and anything that still arrives is
    /// ignored, until [`next_timeout`](Self::next_timeout) (RFC 9000 §10.2.2). The owner may drop
    /// the connection at once, but should not call `Endpoint::remove` before that time: the ids of
    /// the connection are still needed to recognise its late packets.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        matches!(self.state, State::Draining)
    }

    /// Whether the connection is finished: the owner may call `Endpoint::remove` and drop it.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        matches!(self.state, State::Drained)
    }

    /// Client or server.
    #[must_use]
    pub const fn side(&self) -> Side {
        self.side
    }

    /// The addresses in use.
    #[must_use]
    pub const fn path(&self) -> Path {
        self.paths.active.path
    }

    /// Number of paths that the connection has state for: the active one, the previous one, and
    /// those being probed. At most 4.
    #[must_use]
    pub fn paths(&self) -> usize {
        1 + self.paths.others().len()
    }

    /// The QUIC version in use.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.handshake.version
    }

    /// The first byte of the destination id in the datagrams that [`transmit`](Self::transmit) has
    /// just written. Connections to the same address may share a bundle if it is equal: a receiver
    /// with several workers may steer the bundle by this byte. `None`: the datagrams have to be
    /// sent alone, because they probe for the path MTU, so that the system may refuse the whole
    /// bundle, or because the peer's ids are empty.
    #[must_use]
    pub fn lane(&self, sent: &Transmit) -> Option<u8> {
        let fits = sent.segment_size <= self.paths.active.mtu.current();
        let id = self.paths.remote_ids.current();
        id.as_slice().first().copied().filter(|_| fits)
    }

    /// Tells the pacer how many bytes per second all connections of this sender send to the active
    /// path's address, this one included; 0, the initial value, if that is not known. The
    /// connection may then send at once what all of them send in 750 µs, up to its congestion
    /// window and the initial window (RFC 9002 §7.7). A path that many connections share carries
    /// bursts of that size anyway, and one long burst of a connection costs less CPU than several
    /// short ones. A new path starts at 0.
    pub const fn set_rate_together(&mut self, bytes_per_second: u64) {
        self.paths.active.flow.together = bytes_per_second;
    }

    /// The smoothed round-trip time of the active path (RFC 9002 §5.3); `Stats::rtt` alone.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.paths.active.flow.rtt.smoothed()
    }

    /// How many ack-eliciting packets may arrive, and for how long, before the peer wants an
    /// acknowledgement: its request in ACK_FREQUENCY (draft-ietf-quic-ack-frequency §4), or one
    /// packet (RFC 9000 §13.2.2) and this end's `max_ack_delay`.
    #[must_use]
    pub const fn ack_allowance(&self) -> (u64, Duration) {
        let policy = &self.spaces.ack_policy;
        (policy.eliciting_threshold, policy.max_ack_delay)
    }

    /// Counters since the connection began.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            rtt: self.paths.active.flow.rtt.smoothed(),
            min_rtt: self.paths.active.flow.rtt.min(),
            congestion_window: self.paths.active.flow.congestion.window(),
            bytes_in_flight: self.paths.active.flow.in_flight(),
            max_udp_payload: self.paths.active.mtu.current(),
            ecn_capable: self.paths.active.flow.ecn.is_capable(),
            key_updates: self.spaces.ring.as_ref().map_or(0, KeyRing::updates),
            open_streams: self.streams.count(),
            blocked_by_unread_data: self.streams.blocked_by_unread_data(),
            ..self.stats
        }
    }

    /// Estimated memory of the connection, in bytes: its state, data to be sent or waiting to be
    /// read, and records of packets in flight. About twenty additions: call it once per run, not
    /// once per packet. Application data counts while the connection holds it.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of::<Self>()
            + FIXED
            + self.spaces.memory()
            + self.paths.memory()
            + self.handshake.memory()
            + self.streams.memory()
            + self.datagrams.memory()
    }

    /// Starts a key update (RFC 9001 §6) without waiting for
    /// [`key_update_after`](crate::TransportConfig::key_update_after) packets. Returns whether it
    /// did: it cannot before the handshake is confirmed, nor before the peer has acknowledged a
    /// packet under the current keys.
    pub fn force_key_update(&mut self, now: Time) -> bool {
        let begun = self.handshake.confirmed && self.update_keys(now);
        if begun {
            // The peer learns of it with the next packet.
            self.ping();
        }
        begun
    }

    // ---- unreliable datagrams (RFC 9221) --------------------------------------------------------

    /// The largest datagram that can currently be sent, in bytes: limited by the peer and by a
    /// packet of the path's size. It changes with the path. `None`: the peer does not accept
    /// datagrams, or has not said so yet (RFC 9221 §3). Calling this, like sending a datagram,
    /// starts the search for larger packets (RFC 9000 §14.3), if it has not started.
    #[must_use]
    pub fn max_datagram_size(&mut self) -> Option<usize> {
        self.duties.large_packets = true;
        self.datagram_room()
    }

    /// The largest datagram that can currently be sent, in bytes.
    pub(super) fn datagram_room(&self) -> Option<usize> {
        let frame = usize::try_from(self.handshake.peer.max_datagram_frame).unwrap_or(usize::MAX);
        let header = 1 + self.paths.remote_ids.current().len() + PACKET_NUMBER;
        let room = usize::from(self.paths.active.mtu.current()).checked_sub(header + TAG_LEN)?;
        // The frame may need its length.
        let most = frame.min(room);
        most.checked_sub(frame::write::datagram_header_size(Some(most)))
    }

    /// Queues an unreliable datagram. It waits for congestion control in a queue of
    /// `TransportConfig::datagram_send_buffer` bytes.
    ///
    /// # Errors
    /// `Blocked` if the queue is full (`Event::DatagramsWritable` follows once, when half of it is
    /// free), `TooLarge`, `Unsupported`, `Closed`.
    pub fn send_datagram(&mut self, data: Bytes) -> Result<(), DatagramError> {
        self.admit_datagram(&data)?;
        self.datagrams.send(data, self.config.datagram_send_buffer);
        Ok(())
    }

    /// As [`send_datagram`](Self::send_datagram), for one datagram after the other from the front
    /// of `datagrams`. A refused one stays there, with those behind it.
    ///
    /// # Errors
    /// As [`send_datagram`](Self::send_datagram).
    pub fn send_datagrams(&mut self, datagrams: &mut VecDeque<Bytes>) -> Result<(), DatagramError> {
        while let Some(data) = datagrams.front() {
            self.admit_datagram(data)?;
            if let Some(data) = datagrams.pop_front() {
                self.datagrams.send(data, self.config.datagram_send_buffer);
            }
        }
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

    /// The length of the largest datagram that the queue has room for now, in bytes.
    #[must_use]
    pub fn datagram_send_buffer_space(&self) -> usize {
        self.datagrams.room(self.config.datagram_send_buffer)
    }

    /// The oldest received datagram. `None` if there is none; `Event::DatagramsReadable` follows.
    pub fn read_datagram(&mut self) -> Option<Bytes> {
        self.datagrams.read(&mut self.streams.pool)
    }

    /// Whether a datagram may be queued now.
    fn admit_datagram(&mut self, data: &Bytes) -> Result<(), DatagramError> {
        self.check_datagram(data)?;
        if !self
            .datagrams
            .has_room(data, self.config.datagram_send_buffer)
        {
            self.datagrams.writer_waits = true;
            return Err(DatagramError::Blocked);
        }
        Ok(())
    }

    fn check_datagram(&mut self, data: &Bytes) -> Result<(), DatagramError> {
        if self.is_closed() {
            return Err(DatagramError::Closed);
        }
        if self.handshake.peer.max_datagram_frame == 0 {
            return Err(DatagramError::Unsupported);
        }
        self.duties.large_packets = true;
        match self.datagram_room() {
            Some(most) if data.len() <= most => Ok(()),
            _ => Err(DatagramError::TooLarge),
        }
    }

    // ---- the handshake --------------------------------------------------------------------------

    /// The application protocol negotiated by ALPN.
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.handshake.tls.alpn()
    }

    /// The server name that the client requested (RFC 6066 §3); servers only.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        self.handshake.tls.server_name()
    }

    /// The negotiated key exchange group.
    #[must_use]
    pub fn key_exchange_group(&self) -> Option<rustls::NamedGroup> {
        self.handshake.tls.key_exchange_group()
    }

    /// Whether the handshake was full or resumed an earlier session.
    #[must_use]
    pub fn handshake_kind(&self) -> Option<rustls::HandshakeKind> {
        // A server's TLS knows it from the ClientHello on.
        (!self.is_handshaking())
            .then(|| self.handshake.tls.handshake_kind())
            .flatten()
    }

    /// The peer's certificates, end-entity certificate first. `None` before they arrived, if the
    /// peer sent none, and once the handshake is complete, unless
    /// [`keep_peer_certificates`](crate::TransportConfig::keep_peer_certificates) was set.
    #[must_use]
    pub fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        let wanted = self.config.keep_peer_certificates || self.is_handshaking();
        self.handshake.tls.peer_certificates(wanted)
    }

    /// Fills `out` with key material exported from the TLS session (RFC 8446 §7.5), at any time
    /// after the handshake. Both ends get the same bytes for the same label, context and length. An
    /// empty context is the same as none.
    ///
    /// # Errors
    /// [`ExportError`]; `out` is then unchanged.
    pub fn export_keying_material(
        &self,
        out: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportError> {
        if self.is_handshaking() {
            return Err(ExportError::HandshakeIncomplete);
        }
        let allowed = self.config.keep_exporter_secret;
        (self.handshake.tls).export(allowed, out, label, context)
    }

    /// Whether a client may send data before the handshake is complete, as early data. An attacker
    /// may replay it, and the server may reject it: `Event::EarlyDataAccepted` or
    /// `Event::EarlyDataRejected` follows.
    #[must_use]
    pub fn has_early_data(&self) -> bool {
        self.handshake.has_early_data() && !self.is_closed()
    }

    /// Servers: whether data of the stream arrived in 0-RTT packets. Until the handshake is
    /// complete (`Event::Connected`) it may be a replay by an attacker (RFC 9001 §9.2, RFC
    /// 8470).
    #[must_use]
    pub fn is_early(&self, id: StreamId) -> bool {
        self.streams.is_early(id)
    }

    /// Records rare changes of the connection from now on, for
    /// [`poll_observation`](Self::poll_observation). Without this call nothing is recorded.
    pub fn observe(&mut self) {
        self.log.watch();
    }

    /// The next rare change in the life of the connection, since [`observe`](Self::observe). Poll
    /// it regularly: at most 256 are kept.
    pub fn poll_observation(&mut self) -> Option<Observation> {
        self.log.poll_observation()
    }

    /// Writes a qlog of all events from now on to `sink`: JSON text sequences after
    /// draft-ietf-quic-qlog-quic-events, with times in milliseconds of the caller's clock. Call it
    /// right after creating the connection, so that the log is complete. Once the connection has
    /// ended, the sink is flushed after every record. Errors of the sink do not affect the
    /// connection.
    #[cfg(feature = "qlog")]
    pub fn set_qlog(&mut self, now: Time, sink: Box<dyn Write + Send>) {
        let mut log = Qlog::new(sink, self.side, &self.handshake.original_dcid);
        let ids = [
            self.paths.local_ids.current(),
            self.paths.remote_ids.current(),
        ];
        log.connection_started(now, self.paths.active.path, ids);
        log.version_information(now, &self.config.versions, self.handshake.version);
        self.log.qlog = Some(Box::new(log));
    }

    /// Whether a qlog is written.
    #[cfg(feature = "qlog")]
    #[must_use]
    pub fn has_qlog(&self) -> bool {
        self.log.is_on()
    }

    /// Adds an event of the protocol above QUIC to the qlog, if one is written: its name with its
    /// namespace, such as `http3:frame_parsed`, and its data, a JSON object. Data that is not JSON
    /// is left out.
    #[cfg(feature = "qlog")]
    pub fn log_event(&mut self, now: Time, name: &str, data: &str) {
        if let Some(log) = &mut self.log.qlog {
            log.application_event(now, name, data);
        }
    }
}
