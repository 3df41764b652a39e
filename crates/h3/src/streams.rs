//! The streams of the connection itself: control, QPACK encoder and QPACK decoder, one of each from
//! either end (RFC 9114 §6.2, RFC 9204 §4.2).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use squall::{
    AcceptUni, CloseReason, OpenUni, ReadDatagram, ReadError, RecvStream, SendStream, Stopped,
    StreamId,
};

use crate::control::{ControlEvent, ControlReader};
use crate::error::Code;
use crate::frame::{kind, put_frame, put_varint, stream_type};
use crate::qlog::{Frame, Side};
use crate::shared::Shared;
use crate::tunnels::{Arrival, is_session_id};

/// A frame type without meaning, so that peers learn to ignore these (RFC 9114 §7.2.8).
const GREASE: u64 = 0x1f * 0x3_77c1 + 0x21;

/// The connection's own streams.
pub(crate) struct Streams {
    shared: Arc<Shared>,
    /// Our next stream; they are opened in the order of [`OPENED`].
    opening: Option<OpenUni>,
    opened: usize,
    control: Option<SendStream>,
    /// Data that the control stream has no room for yet.
    control_waiting: Vec<u8>,
    /// One for each of our streams, which the peer may not stop.
    stopped: Vec<Stopped>,
    accept: AcceptUni,
    datagram: Option<ReadDatagram>,
    peers: Vec<PeerStream>,
    /// Which of the types 0 to 3 the peer has opened.
    has_opened: [bool; 4],
}

/// Our streams, by type.
const OPENED: [u64; 3] = [
    stream_type::CONTROL,
    stream_type::QPACK_DECODER,
    stream_type::QPACK_ENCODER,
];

struct PeerStream {
    recv: RecvStream,
    role: Role,
}

enum Role {
    /// The type has not arrived; the bytes of it so far.
    Unknown([u8; 8], usize),
    Control(Box<ControlReader>),
    QpackEncoder,
    QpackDecoder,
    /// A WebTransport stream whose session id has not arrived; the bytes of it so far.
    WebTransport([u8; 8], usize),
}

/// What happens to a stream after a chunk.
enum Fate {
    Stays,
    Goes,
    /// It belongs to this session; these are its first bytes.
    WebTransport(u64, Bytes),
}

/// Why the connection ends.
pub(crate) enum Ended {
    /// The connection has ended.
    Closed(CloseReason),
    /// The peer broke a rule.
    Failed(Code, &'static str),
}

impl From<Code> for Ended {
    fn from(code: Code) -> Self {
        Self::Failed(code, "")
    }
}

impl Streams {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let mut control_waiting = Vec::new();
        put_varint(&mut control_waiting, stream_type::CONTROL);
        let own = shared.config.settings(shared.is_server);
        shared.qlog.parameters_set(Side::Local, &own);
        let mut settings = Vec::new();
        own.encode(&mut settings);
        put_frame(&mut control_waiting, kind::SETTINGS, &settings);
        put_frame(&mut control_waiting, GREASE, b"");
        Self {
            opening: Some(shared.connection.open_uni()),
            opened: 0,
            control: None,
            control_waiting,
            stopped: Vec::with_capacity(OPENED.len()),
            accept: shared.connection.accept_uni(),
            datagram: (shared.config.accepts_datagrams())
                .then(|| shared.connection.read_datagram()),
            peers: Vec::new(),
            has_opened: [false; 4],
            shared,
        }
    }

    /// Sends GOAWAY (RFC 9114 §5.2).
    pub(crate) fn go_away(&mut self, id: u64, cx: &mut Context<'_>) {
        let mut payload = Vec::new();
        put_varint(&mut payload, id);
        put_frame(&mut self.control_waiting, kind::GOAWAY, &payload);
        if let Some(control) = &self.control {
            let qlog = &self.shared.qlog;
            qlog.frame(Side::Local, control.id(), Frame::GoAway(id));
        }
        self.flush(cx);
    }

    /// Reads, opens and writes as much as possible, and calls `on_event` for each event on the
    /// peer's control stream.
    ///
    /// # Errors
    /// The connection has ended, or has to.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut on_event: impl FnMut(&Shared, ControlEvent),
    ) -> Result<(), Ended> {
        self.open(cx)?;
        self.check_own()?;
        let (shared, has_opened) = (&*self.shared, &mut self.has_opened);
        let mut i = 0;
        while let Some(peer) = self.peers.get_mut(i) {
            match peer.poll(cx, shared, has_opened, &mut on_event)? {
                Fate::Stays => i += 1,
                Fate::Goes => drop(self.peers.swap_remove(i)),
                Fate::WebTransport(session, first) => {
                    let recv = self.peers.swap_remove(i).recv;
                    shared.tunnels.route(session, Arrival::Uni(recv, first));
                }
            }
        }
        loop {
            let mut peer = match Pin::new(&mut self.accept).poll(cx) {
                Poll::Ready(Ok(recv)) => PeerStream {
                    recv,
                    role: Role::Unknown([0; 8], 0),
                },
                Poll::Ready(Err(reason)) => return Err(Ended::Closed(reason)),
                Poll::Pending => break,
            };
            self.accept = shared.connection.accept_uni();
            // Most WebTransport streams are passed on at once, in the order of their opening.
            match peer.poll(cx, shared, has_opened, &mut on_event)? {
                Fate::Stays => self.peers.push(peer),
                Fate::Goes => {}
                Fate::WebTransport(session, first) => {
                    let arrival = Arrival::Uni(peer.recv, first);
                    shared.tunnels.route(session, arrival);
                }
            }
        }
        self.read_datagrams(cx)?;
        self.flush(cx);
        Ok(())
    }

    /// Our streams may not end (RFC 9114 §6.2.1, RFC 9204 §4.2).
    fn check_own(&mut self) -> Result<(), Ended> {
        // Not with the driver's waker, as that would take three locks in each poll.
        if !self.shared.take_stopped() {
            return Ok(());
        }
        let waker = Waker::from(Arc::clone(&self.shared));
        for stopped in &mut self.stopped {
            let stopped = Pin::new(stopped).poll(&mut Context::from_waker(&waker));
            // The end of the connection is noticed elsewhere.
            if let Poll::Ready(Ok(_)) = stopped {
                let why = "critical stream stopped";
                return Err(Ended::Failed(Code::H3_CLOSED_CRITICAL_STREAM, why));
            }
        }
        Ok(())
    }

    fn read_datagrams(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        while let Some(reading) = &mut self.datagram {
            match Pin::new(reading).poll(cx) {
                Poll::Ready(Ok(datagram)) => {
                    self.datagram = Some(self.shared.connection.read_datagram());
                    crate::datagram::route(&self.shared, &datagram)?;
                }
                Poll::Ready(Err(reason)) => return Err(Ended::Closed(reason)),
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Opens our streams as far as the peer allows.
    fn open(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        while let (Some(opening), Some(stream_type)) = (&mut self.opening, OPENED.get(self.opened))
        {
            let mut send = match Pin::new(opening).poll(cx) {
                Poll::Ready(Ok(send)) => send,
                Poll::Ready(Err(reason)) => return Err(Ended::Closed(reason)),
                Poll::Pending => break,
            };
            // The connection's own streams take precedence over all requests.
            let _ = send.set_priority(squall::Priority {
                level: i32::MAX,
                incremental: true,
            });
            send.set_background();
            // If the task that drives the connection is dropped; without a code it is a warning.
            send.set_drop_code(Code::H3_INTERNAL_ERROR.0);
            self.stopped.push(send.stopped());
            // Has the driver poll it once.
            self.shared.set_stopped();
            let qlog = &self.shared.qlog;
            qlog.stream_type_set(Side::Local, send.id(), *stream_type);
            self.opened += 1;
            self.opening = (self.opened < OPENED.len()).then(|| self.shared.connection.open_uni());
            if *stream_type == stream_type::CONTROL {
                let own = self.shared.config.settings(self.shared.is_server);
                qlog.frame(Side::Local, send.id(), Frame::Settings(&own));
                self.control = Some(send);
                self.flush(cx);
                continue;
            }
            if *stream_type == stream_type::QPACK_DECODER {
                self.shared.open_decoder_stream(send);
            } else {
                self.shared.open_encoder_stream(send);
            }
        }
        Ok(())
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        let Some(control) = &mut self.control else {
            return;
        };
        while !self.control_waiting.is_empty() {
            match control.poll_write(cx, &self.control_waiting) {
                Poll::Ready(Ok(written)) => {
                    self.control_waiting.drain(..written);
                }
                // The connection is over or has to end, which is noticed elsewhere.
                Poll::Ready(Err(_)) => self.control_waiting.clear(),
                Poll::Pending => return,
            }
        }
    }
}

impl PeerStream {
    /// Reads what has arrived.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        shared: &Shared,
        has_opened: &mut [bool; 4],
        on_event: &mut impl FnMut(&Shared, ControlEvent),
    ) -> Result<Fate, Ended> {
        loop {
            let chunk = match self.recv.poll_read_chunk(cx, usize::MAX) {
                Poll::Pending => return Ok(Fate::Stays),
                Poll::Ready(Ok(Some(chunk))) => chunk,
                Poll::Ready(Err(ReadError::ConnectionLost(reason))) => {
                    return Err(Ended::Closed(reason));
                }
                Poll::Ready(_) => {
                    return match self.role {
                        // RFC 9114 §6.2: a stream may end before its type.
                        Role::Unknown(..) | Role::WebTransport(..) => Ok(Fate::Goes),
                        // RFC 9114 §6.2.1, RFC 9204 §4.2.
                        _ => Err(Ended::Failed(
                            Code::H3_CLOSED_CRITICAL_STREAM,
                            "critical stream ended",
                        )),
                    };
                }
            };
            match self.on_chunk(chunk, shared, has_opened, on_event)? {
                Fate::Stays => {}
                fate => return Ok(fate),
            }
        }
    }

    fn on_chunk(
        &mut self,
        mut chunk: Bytes,
        shared: &Shared,
        has_opened: &mut [bool; 4],
        on_event: &mut impl FnMut(&Shared, ControlEvent),
    ) -> Result<Fate, Ended> {
        if let Role::Unknown(bytes, len) = &mut self.role {
            let Some(stream_type) = first_varint(bytes, len, &mut chunk) else {
                return Ok(Fate::Stays);
            };
            let id = self.recv.id();
            shared.qlog.stream_type_set(Side::Remote, id, stream_type);
            match role(stream_type, shared, has_opened)? {
                Some(role) => {
                    if !matches!(role, Role::WebTransport(..)) {
                        self.recv.set_background();
                    }
                    self.role = role;
                }
                None => {
                    // RFC 9114 §6.2: stop reading an unknown stream.
                    let _ = self.recv.stop(Code::H3_STREAM_CREATION_ERROR.0);
                    return Ok(Fate::Goes);
                }
            }
        }
        match &mut self.role {
            Role::Unknown(..) => {}
            Role::Control(reader) => {
                reader.push(chunk);
                while let Some(event) = reader.next()? {
                    log(shared, self.recv.id(), &event);
                    if let ControlEvent::Settings(settings) = event {
                        shared.on_settings(settings);
                    }
                    on_event(shared, event);
                }
            }
            Role::QpackEncoder => shared.on_encoder_stream(&chunk)?,
            Role::QpackDecoder => shared.on_decoder_stream(&chunk)?,
            Role::WebTransport(bytes, len) => {
                if let Some(session) = first_varint(bytes, len, &mut chunk) {
                    if !is_session_id(session) {
                        let why = "no session has this id";
                        return Err(Ended::Failed(Code::H3_ID_ERROR, why));
                    }
                    return Ok(Fate::WebTransport(session, chunk));
                }
            }
        }
        Ok(Fate::Stays)
    }
}

/// Logs a frame of the peer's control stream.
fn log(shared: &Shared, id: StreamId, event: &ControlEvent) {
    let frame = match event {
        ControlEvent::Settings(settings) => Frame::Settings(settings),
        ControlEvent::GoAway(id) => Frame::GoAway(*id),
        ControlEvent::Priority(id, value) => Frame::PriorityUpdate(*id, value),
    };
    shared.qlog.frame(Side::Remote, id, frame);
}

/// The integer at the beginning of a stream, once it is complete.
fn first_varint(bytes: &mut [u8; 8], len: &mut usize, chunk: &mut Bytes) -> Option<u64> {
    while let Some(&byte) = chunk.first() {
        *bytes.get_mut(*len)? = byte;
        *len += 1;
        chunk.advance(1);
        if let Ok(value) = squall_wire::Reader::new(bytes.get(..*len)?).varint() {
            return Some(value);
        }
    }
    None
}

/// The role of a stream of this type; `None`: its type is unknown.
fn role(
    stream_type: u64,
    shared: &Shared,
    has_opened: &mut [bool; 4],
) -> Result<Option<Role>, Ended> {
    let is_server = shared.is_server;
    let role = match stream_type {
        stream_type::CONTROL => Role::Control(Box::new(ControlReader::new(is_server))),
        stream_type::QPACK_ENCODER => Role::QpackEncoder,
        stream_type::QPACK_DECODER => Role::QpackDecoder,
        // RFC 9114 §6.2.2: clients open no push stream, and this end allows servers none.
        stream_type::PUSH if is_server => return Err(Code::H3_STREAM_CREATION_ERROR.into()),
        stream_type::PUSH => return Err(Code::H3_ID_ERROR.into()),
        stream_type::WEBTRANSPORT if shared.config.webtransport > 0 => {
            return Ok(Some(Role::WebTransport([0; 8], 0)));
        }
        _ => return Ok(None),
    };
    let opened = has_opened.get_mut(stream_type as usize);
    if opened.is_none_or(|opened| std::mem::replace(opened, true)) {
        // RFC 9114 §6.2.1, RFC 9204 §4.2: one of each.
        let why = "second stream of its type";
        return Err(Ended::Failed(Code::H3_STREAM_CREATION_ERROR, why));
    }
    Ok(Some(role))
}

impl Drop for Streams {
    /// Releases all tasks that wait for these streams.
    fn drop(&mut self) {
        self.shared.on_driver_end();
    }
}
