//! State shared by a connection's driver, its requests and its bodies.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use squall::{Connection, Priority, SendStream, Stage, StreamId};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::config::Config;
use crate::error::{Code, Error};
use crate::frame::{close_frame, kind, open_frame, stream_type};
use crate::lock::{lock, replace};
use crate::message::Malformed;
use crate::priority::Wish;
use crate::qlog::{Qlog, Side};
use crate::qpack::{DecodeError, Decoded, Decoder, Encoder, Field, FieldSection, encode_static};
use crate::settings::Settings;
use crate::tunnels::Tunnels;

/// Priorities that are kept for requests that have not arrived (RFC 9218 §7).
const MAX_PRIORITIES: usize = 64;

/// How long a session beyond the limit waits for another one to end. Its request may overtake the
/// end of the one whose place it takes.
const SESSION_END: Duration = Duration::from_millis(100);

/// See [`Builder::on_send_timeout`](crate::server::Builder::on_send_timeout).
pub(crate) type OnSendTimeout = Arc<dyn Fn() + Send + Sync>;

/// One connection.
pub(crate) struct Shared {
    pub(crate) connection: Connection,
    pub(crate) is_server: bool,
    pub(crate) config: Config,
    /// Called for each response whose client has stalled.
    pub(crate) on_send_timeout: Option<OnSendTimeout>,
    pub(crate) qlog: Qlog,
    /// The peer's settings, once they have arrived.
    peer: OnceLock<Settings>,
    /// Fields that the peer encodes.
    incoming: Mutex<Incoming>,
    /// Fields that this end encodes.
    outgoing: Mutex<Outgoing>,
    /// Whether this end's encoder may use the dynamic table. Without it the encoder has no state.
    is_dynamic: AtomicBool,
    /// Whether the handshake is known to be complete.
    is_connected: AtomicBool,
    /// Requests that the application has not finished with.
    active: AtomicUsize,
    /// Whether the driver waits for the last request to end.
    is_closing: AtomicBool,
    /// Requests that the peer cancelled before they were answered, minus those that were answered;
    /// never below zero.
    cancelled: AtomicUsize,
    /// Priorities of requests that have not arrived yet.
    priorities: Mutex<VecDeque<(StreamId, Priority)>>,
    /// The id in the server's GOAWAY; at the server, any id says that either end has sent one.
    /// `u64::MAX` before.
    goaway: AtomicU64,
    /// Requests that wait for a stream or for their response, which GOAWAY may end, and sessions.
    goaway_awaited: Notify,
    /// Tasks that wait for the peer's settings.
    settings_awaited: Mutex<Vec<Waker>>,
    driver: Mutex<Option<Waker>>,
    /// Whether the peer may have stopped one of this end's control and QPACK streams.
    has_stopped: AtomicBool,
    /// Requests that have datagrams or streams of their own.
    pub(crate) tunnels: Tunnels,
    /// The WebTransport sessions that the peer may have in addition to those that it has.
    sessions: OnceLock<Arc<Semaphore>>,
}

/// The receiving side of QPACK.
struct Incoming {
    decoder: Decoder,
    /// The most recently decoded section; kept for its memory.
    section: FieldSection,
    instructions: Instructions,
    /// Tasks that wait for entries of the dynamic table.
    blocked: Vec<Waker>,
}

/// The sending side of QPACK.
struct Outgoing {
    encoder: Encoder,
    instructions: Instructions,
}

/// A QPACK stream to the peer.
#[derive(Default)]
pub(crate) struct Instructions {
    send: Option<SendStream>,
    /// Not yet written: flow control holds it back, or the stream is not open yet.
    waiting: Vec<u8>,
    written: usize,
}

/// Why fields cannot be decoded.
#[derive(Debug)]
pub(crate) enum FieldsError {
    /// The connection has to end.
    Connection(Code),
    TooLarge,
    Malformed(Malformed),
}

impl Shared {
    pub(crate) fn new(connection: Connection, is_server: bool, config: Config) -> Self {
        let capacity = usize::try_from(config.qpack_max_table_capacity).unwrap_or(usize::MAX);
        let blocked = usize::try_from(config.qpack_blocked_streams).unwrap_or(usize::MAX);
        Self {
            qlog: Qlog::of(&connection),
            connection,
            is_server,
            on_send_timeout: None,
            peer: OnceLock::new(),
            incoming: Mutex::new(Incoming {
                decoder: Decoder::new(capacity, blocked),
                section: FieldSection::new(),
                instructions: Instructions::default(),
                blocked: Vec::new(),
            }),
            outgoing: Mutex::new(Outgoing {
                encoder: Encoder::new(),
                instructions: Instructions::default(),
            }),
            is_dynamic: AtomicBool::new(false),
            is_connected: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            cancelled: AtomicUsize::new(0),
            priorities: Mutex::default(),
            goaway: AtomicU64::new(u64::MAX),
            goaway_awaited: Notify::new(),
            settings_awaited: Mutex::default(),
            driver: Mutex::new(None),
            has_stopped: AtomicBool::new(false),
            tunnels: Tunnels::default(),
            sessions: OnceLock::new(),
            config,
        }
    }

    /// Attributes the time since the previous mark to `stage`, if this is a task of the worker
    /// whose time is measured.
    #[inline]
    pub(crate) fn mark(&self, stage: Stage) {
        self.connection.mark_stage(stage);
    }

    /// Runs work that the application has called for.
    #[inline]
    pub(crate) fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        self.mark(Stage::Application);
        let result = work();
        self.mark(Stage::Http);
        result
    }

    /// Calls the application's own code.
    #[inline]
    pub(crate) fn call<R>(&self, application: impl FnOnce() -> R) -> R {
        self.mark(Stage::Http);
        let result = application();
        self.mark(Stage::Application);
        result
    }

    /// Ends the connection: the peer broke a rule.
    pub(crate) fn fail(&self, code: Code, why: &str) {
        self.connection.close(code.0, why.as_bytes());
    }

    /// The peer's settings; the initial ones until they have arrived.
    pub(crate) fn peer_settings(&self) -> &Settings {
        const INITIAL: Settings = Settings::INITIAL;
        self.peer.get().unwrap_or(&INITIAL)
    }

    /// Whether the peer's settings have arrived.
    pub(crate) fn has_peer_settings(&self) -> bool {
        self.peer.get().is_some()
    }

    /// The peer's settings have arrived. They come once.
    pub(crate) fn on_settings(&self, settings: Settings) {
        self.qlog.parameters_set(Side::Remote, &settings);
        let _ = self.peer.set(settings);
        let waiting = std::mem::take(&mut *lock(&self.settings_awaited));
        waiting.into_iter().for_each(Waker::wake);
        let own = self.config.qpack_encoder_table_capacity;
        if settings.qpack_max_table_capacity > 0 && own > 0 {
            let own = usize::try_from(own).unwrap_or(usize::MAX);
            let (capacity, blocked) = (
                settings.qpack_max_table_capacity,
                settings.qpack_blocked_streams,
            );
            lock(&self.outgoing)
                .encoder
                .set_limits(capacity, blocked, own);
            self.is_dynamic.store(true, Ordering::Release);
        }
    }

    /// Appends a HEADERS frame of these fields to `out`, which is empty or holds room made by
    /// [`open_frame`], and returns where the frame begins.
    ///
    /// # Errors
    /// The peer accepts no section of this size (RFC 9114 §4.2.2).
    pub(crate) fn encode<'a>(
        &self,
        stream: StreamId,
        fields: impl Iterator<Item = Field<'a>>,
        out: &mut Vec<u8>,
    ) -> Result<usize, Error> {
        let mut size = 0;
        let mut logged = self.qlog.fields();
        let fields = fields.inspect(|field| {
            size += field.name.len() + field.value.len() + 32;
            logged.push(field);
        });
        let payload = open_frame(out);
        self.mark(Stage::Http);
        let limit = self.peer_settings().max_field_section_size;
        let is_too_large = |size: usize| limit.is_some_and(|limit| size as u64 > limit);
        if !self.is_dynamic.load(Ordering::Acquire) {
            encode_static(fields, out);
        } else {
            let mut outgoing = lock(&self.outgoing);
            let Outgoing {
                encoder,
                instructions,
            } = &mut *outgoing;
            if instructions.is_flowing() {
                encoder.encode(stream.0, fields, out);
                if is_too_large(size) {
                    encoder.withdraw();
                }
                if !instructions.take(encoder.instructions()) {
                    drop(outgoing);
                    self.wake_driver();
                }
            } else {
                // RFC 9204 §2.1.3: a section that depends on instructions which are held back may
                // wait for ever, for example at a peer that allows no unidirectional streams.
                encode_static(fields, out);
            }
        }
        self.mark(Stage::Qpack);
        if is_too_large(size) {
            return Err(Error::TooLargeForPeer);
        }
        self.qlog.headers_created(stream, logged);
        Ok(close_frame(out, payload, kind::HEADERS as u8))
    }

    /// Decodes a section and has it read. Pending while it refers to entries yet to arrive.
    pub(crate) fn poll_decode<R>(
        &self,
        cx: &Context<'_>,
        stream: StreamId,
        block: &[u8],
        read: impl FnOnce(&FieldSection) -> Result<R, Malformed>,
    ) -> Poll<Result<R, FieldsError>> {
        let mut incoming = lock(&self.incoming);
        let Incoming {
            decoder,
            section,
            instructions,
            blocked,
        } = &mut *incoming;
        let limit = usize::try_from(self.config.max_field_section_size).unwrap_or(usize::MAX);
        self.mark(Stage::Http);
        let decoded = decoder.decode(stream.0, block, limit, section);
        self.mark(Stage::Qpack);
        let result = match decoded {
            // Nothing more arrives that could unblock it.
            Ok(Decoded::Blocked) if self.connection.close_reason().is_some() => {
                Err(FieldsError::Connection(Code::H3_NO_ERROR))
            }
            Ok(Decoded::Blocked) => {
                // A waiting task may also be polled for other reasons.
                if !blocked.iter().any(|waker| waker.will_wake(cx.waker())) {
                    blocked.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            Ok(Decoded::Done) => {
                self.qlog.headers_parsed(stream, section);
                read(section).map_err(FieldsError::Malformed)
            }
            Err(DecodeError::Connection(code)) => Err(FieldsError::Connection(code)),
            Err(DecodeError::TooLarge) => Err(FieldsError::TooLarge),
        };
        if !instructions.take(decoder.instructions()) {
            drop(incoming);
            self.wake_driver();
        }
        Poll::Ready(result)
    }

    /// A stream is abandoned before its sections were decoded (RFC 9204 §2.2.2.2).
    pub(crate) fn cancel_decoding(&self, stream: StreamId) {
        let mut incoming = lock(&self.incoming);
        let Incoming {
            decoder,
            instructions,
            ..
        } = &mut *incoming;
        decoder.cancel_stream(stream.0);
        if !instructions.take(decoder.instructions()) {
            drop(incoming);
            self.wake_driver();
        }
    }

    /// Processes bytes of the peer's encoder stream.
    pub(crate) fn on_encoder_stream(&self, data: &[u8]) -> Result<(), Code> {
        let mut incoming = lock(&self.incoming);
        let has_grown = incoming.decoder.on_encoder_stream(data)?;
        // Reported when the driver flushes: a section decoded before then implies as much.
        let blocked = if has_grown {
            std::mem::take(&mut incoming.blocked)
        } else {
            Vec::new()
        };
        drop(incoming);
        blocked.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Processes bytes of the peer's decoder stream.
    pub(crate) fn on_decoder_stream(&self, data: &[u8]) -> Result<(), Code> {
        lock(&self.outgoing).encoder.on_decoder_stream(data)
    }

    /// The stream for the encoder's instructions is open.
    pub(crate) fn open_encoder_stream(&self, send: SendStream) {
        let instructions = &mut lock(&self.outgoing).instructions;
        instructions.open(send, stream_type::QPACK_ENCODER);
    }

    /// The stream for the decoder's instructions is open.
    pub(crate) fn open_decoder_stream(&self, send: SendStream) {
        let instructions = &mut lock(&self.incoming).instructions;
        instructions.open(send, stream_type::QPACK_DECODER);
    }

    /// Writes what is waiting for the QPACK streams. For the driver, whose task is woken when there
    /// is room again.
    pub(crate) fn flush(&self, cx: &mut Context<'_>) {
        let mut incoming = lock(&self.incoming);
        let Incoming {
            decoder,
            instructions,
            ..
        } = &mut *incoming;
        instructions.waiting.append(decoder.instructions());
        instructions.flush(cx);
        drop(incoming);
        if self.is_dynamic.load(Ordering::Acquire) {
            lock(&self.outgoing).instructions.flush(cx);
        }
    }

    /// Stores the waker of the driver's task.
    pub(crate) fn set_driver(&self, waker: &Waker) {
        let replaced = replace(&mut lock(&self.driver), waker);
        drop(replaced);
    }

    pub(crate) fn wake_driver(&self) {
        let waker = lock(&self.driver).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the peer may have stopped a critical stream since the last call.
    pub(crate) fn take_stopped(&self) -> bool {
        self.has_stopped.load(Ordering::Relaxed) && self.has_stopped.swap(false, Ordering::Acquire)
    }

    /// See [`take_stopped`](Self::take_stopped).
    pub(crate) fn set_stopped(&self) {
        self.has_stopped.store(true, Ordering::Release);
    }

    /// Waits for the peer's settings.
    pub(crate) async fn settings_arrived(&self) -> Result<&Settings, Error> {
        std::future::poll_fn(|cx| {
            let mut waiting = lock(&self.settings_awaited);
            match (self.peer.get(), self.connection.close_reason()) {
                (Some(settings), _) => Poll::Ready(Ok(settings)),
                (None, Some(reason)) => Poll::Ready(Err(Error::Connection(reason))),
                (None, None) => {
                    waiting.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The server processes no requests from this stream id on.
    pub(crate) fn set_goaway(&self, id: u64) {
        self.goaway.store(id, Ordering::SeqCst);
        self.goaway_awaited.notify_waiters();
    }

    /// Waits for the next GOAWAY. One that arrives before the first poll counts.
    pub(crate) fn goaway_arrived(&self) -> Notified<'_> {
        self.goaway_awaited.notified()
    }

    /// The stream id from which on the server processes no requests.
    pub(crate) fn goaway(&self) -> Option<u64> {
        let id = self.goaway.load(Ordering::SeqCst);
        (id != u64::MAX).then_some(id)
    }

    /// A place for a session of the peer; `None` if it has as many as it may have.
    pub(crate) fn session_place(&self) -> Option<OwnedSemaphorePermit> {
        self.sessions().try_acquire_owned().ok()
    }

    /// As [`session_place`](Self::session_place), but waits for a session that is about to end.
    pub(crate) async fn session_place_soon(&self) -> Option<OwnedSemaphorePermit> {
        let place = self.sessions().acquire_owned();
        tokio::time::timeout(SESSION_END, place).await.ok()?.ok()
    }

    fn sessions(&self) -> Arc<Semaphore> {
        let all = || Arc::new(Semaphore::new(self.config.max_sessions()));
        Arc::clone(self.sessions.get_or_init(all))
    }

    /// Whether no more requests will be sent and none is in progress.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst) && self.active() == 0
    }

    /// The connection has ended, or its driver has.
    pub(crate) fn on_driver_end(&self) {
        let mut blocked = std::mem::take(&mut lock(&self.incoming).blocked);
        blocked.append(&mut lock(&self.settings_awaited));
        blocked.into_iter().for_each(Waker::wake);
        self.tunnels
            .end_all(self.connection.close_reason().is_none());
    }

    /// Whether the handshake is complete. Until then, requests may be early data.
    pub(crate) fn is_handshake_complete(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed) || {
            let is_connected = self.connection.handshake_kind().is_some();
            self.is_connected.store(is_connected, Ordering::Relaxed);
            is_connected
        }
    }

    /// A request begins.
    pub(crate) fn begin_request(&self) {
        // A client's request then checks for GOAWAY, and the arrival of GOAWAY is followed by a
        // check of this count: at least one of the two sees the other.
        self.active.fetch_add(1, Ordering::SeqCst);
    }

    /// A request that was begun ends.
    pub(crate) fn end_request(&self) {
        if self.active.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_closing.load(Ordering::SeqCst)
        {
            self.wake_driver();
        }
    }

    /// Wakes the driver's task when no request is active.
    pub(crate) fn wake_when_inactive(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
    }

    /// The peer cancelled a request before its response began. A peer that cancels every request
    /// this early causes work and never receives a response ("rapid reset"). One that cancels later
    /// has waited for the service like any other, and has given credit for the head.
    pub(crate) fn on_cancelled(&self) {
        let max = self.config.max_cancelled_requests;
        if self.cancelled.fetch_add(1, Ordering::Relaxed) >= max {
            self.fail(Code::H3_EXCESSIVE_LOAD, "too many cancelled requests");
        }
    }

    /// The peer let a response stall, and the stream was reset.
    pub(crate) fn on_stalled(&self) {
        if let Some(call) = &self.on_send_timeout {
            call();
        }
        self.on_cancelled();
    }

    /// A request was answered.
    pub(crate) fn on_completed(&self) {
        if self.cancelled.load(Ordering::Relaxed) > 0 {
            let less = |cancelled: usize| cancelled.checked_sub(1);
            let _ = (self.cancelled).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// The client gave a request another priority (RFC 9218 §7.1). One for a request that has not
    /// arrived is kept for it.
    pub(crate) fn set_priority(&self, id: u64, value: &[u8], has_arrived: bool) {
        let (id, priority) = (StreamId(id), Wish::of_request(value));
        self.qlog.priority_updated(id, value);
        if self.connection.set_stream_priority(id, priority).is_err() && !has_arrived {
            let mut priorities = lock(&self.priorities);
            priorities.retain(|(of, _)| *of != id);
            if priorities.len() >= MAX_PRIORITIES {
                priorities.pop_front();
            }
            priorities.push_back((id, priority));
        }
    }

    /// The priority that a request was given before it arrived.
    pub(crate) fn take_priority(&self, id: StreamId) -> Option<Priority> {
        let mut priorities = lock(&self.priorities);
        let found = priorities.iter().position(|(of, _)| *of == id)?;
        priorities.remove(found).map(|(_, priority)| priority)
    }

    /// Requests that the application has not finished with.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::SeqCst)
    }
}

impl Instructions {
    /// Begins the stream, with its type.
    fn open(&mut self, send: SendStream, stream_type: u64) {
        // A type of one byte. It waits as instructions do if the peer gives no credit yet.
        self.waiting.insert(0, stream_type as u8);
        self.send = Some(send);
        self.flush(&mut Context::from_waker(Waker::noop()));
    }

    /// Whether instructions are sent as they are made.
    #[inline]
    fn is_flowing(&self) -> bool {
        self.send.is_some() && self.waiting.is_empty()
    }

    /// Takes instructions and writes as much as there is room for; `false` if the driver has to
    /// flush the rest.
    #[inline]
    fn take(&mut self, instructions: &mut Vec<u8>) -> bool {
        if instructions.is_empty() {
            return true;
        }
        self.waiting.append(instructions);
        self.flush(&mut Context::from_waker(Waker::noop()))
    }

    /// Writes as much as there is room for; `false` if something is left.
    fn flush(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(send) = &mut self.send else {
            return self.waiting.is_empty();
        };
        while self.written < self.waiting.len() {
            let rest = self.waiting.get(self.written..).unwrap_or_default();
            match send.poll_write(cx, rest) {
                Poll::Ready(Ok(written)) => self.written += written,
                // The connection is over or has to end, which the driver notices.
                Poll::Ready(Err(_)) => break,
                Poll::Pending => return false,
            }
        }
        self.waiting.clear();
        self.written = 0;
        true
    }
}

/// Woken when the peer stops one of this end's control and QPACK streams. Only then does the driver
/// look at them.
impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set_stopped();
        self.wake_driver();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("is_server", &self.is_server)
            .field("active", &self.active)
            .finish_non_exhaustive()
    }
}
