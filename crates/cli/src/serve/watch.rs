//! Watches whether a connection makes progress, and when it is too slow.
//!
//! The transport, the bodies and the service record when something happens; the connection's task
//! checks these records when its timer fires. Nothing starts a timer per read, write or request.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

/// Milliseconds since the first call, plus one: zero means that something has not happened.
pub(crate) fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64 + 1
}

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// From the first byte of a request's head to its last, over HTTP/1.1; for a TLS handshake.
    pub(crate) header: Duration,
    /// Without a request.
    pub(crate) idle: Duration,
    /// For a client that reads nothing of a response.
    pub(crate) send: Duration,
    /// For a pause in a request's body.
    pub(crate) body: Duration,
    /// Without any progress of the requests in flight.
    pub(crate) stall: Duration,
}

/// The recent events of a connection.
#[derive(Debug)]
pub(crate) struct Activity {
    in_flight: AtomicU32,
    /// Upgraded streams, which have a limit of their own.
    tunnels: AtomicU32,
    /// The last step of any request.
    progress: AtomicU64,
    /// Since when a head has been incomplete; zero: none is.
    head_since: AtomicU64,
    /// Since when nothing can be written; zero: writing is possible.
    blocked_since: AtomicU64,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It has been idle: it ends properly.
    Idle,
    /// It is too slow: it ends at once.
    TooSlow,
    /// Check again at this time.
    Fine(u64),
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self {
            in_flight: AtomicU32::new(0),
            tunnels: AtomicU32::new(0),
            progress: AtomicU64::new(now_ms()),
            head_since: AtomicU64::new(0),
            blocked_since: AtomicU64::new(0),
        }
    }

    /// A request has arrived.
    pub(crate) fn start(&self) {
        self.in_flight.fetch_add(1, Relaxed);
        self.head_since.store(0, Relaxed);
        self.progress();
    }

    /// A part of a body was transferred.
    pub(crate) fn progress(&self) {
        self.progress.store(now_ms(), Relaxed);
    }

    /// A response is complete.
    pub(crate) fn finish(&self) {
        self.progress();
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// A stream of the connection is now a tunnel: it may be silent for longer than a request.
    pub(crate) fn start_tunnel(&self) {
        self.tunnels.fetch_add(1, Relaxed);
    }

    /// The tunnel has ended.
    pub(crate) fn finish_tunnel(&self) {
        self.progress();
        self.tunnels.fetch_sub(1, Relaxed);
    }

    fn on_read(&self, kind: Kind) {
        match kind {
            // Bytes outside of a request belong to a head.
            Kind::Http1 => {
                if self.in_flight.load(Relaxed) == 0 && self.head_since.load(Relaxed) == 0 {
                    self.head_since.store(now_ms(), Relaxed);
                }
            }
            Kind::Http2 => {}
            Kind::Tunnel => self.progress(),
        }
    }

    fn on_write(&self, is_blocked: bool) {
        let since = self.blocked_since.load(Relaxed);
        if !is_blocked && since != 0 {
            self.blocked_since.store(0, Relaxed);
        } else if is_blocked && since == 0 {
            self.blocked_since.store(now_ms(), Relaxed);
        }
    }

    /// Whether the transport is currently taking nothing.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked_since.load(Relaxed) != 0
    }

    /// Whether the connection may continue at this time.
    pub(crate) fn judge(&self, now: u64, limits: &Limits) -> Verdict {
        let after = |since: u64, limit: Duration| {
            since.saturating_add(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))
        };
        let progress = self.progress.load(Relaxed);
        let (mut due, mut verdict) = if self.tunnels.load(Relaxed) > 0 {
            (after(now, limits.idle), Verdict::Idle)
        } else if self.in_flight.load(Relaxed) == 0 {
            (after(progress, limits.idle), Verdict::Idle)
        } else {
            (after(progress, limits.stall), Verdict::TooSlow)
        };
        for (since, limit) in [
            (self.head_since.load(Relaxed), limits.header),
            (self.blocked_since.load(Relaxed), limits.send),
        ] {
            if since != 0 && after(since, limit) < due {
                (due, verdict) = (after(since, limit), Verdict::TooSlow);
            }
        }
        if now >= due {
            verdict
        } else {
            Verdict::Fine(due)
        }
    }
}

/// Drives a connection until it ends, is too slow, or has been idle. When the server stops,
/// `shut_down` makes it end after the requests in flight. Returns whether the client read nothing
/// of a response for too long.
pub(crate) async fn supervise<C: Future>(
    mut connection: Pin<&mut C>,
    shut_down: impl Fn(Pin<&mut C>, &mut Context<'_>),
    activity: &Activity,
    limits: &Limits,
    mut stopping: watch::Receiver<bool>,
) -> bool {
    let mut stop = pin!(async move {
        // An error means that the server is gone.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    });
    let mut is_ending = false;
    // When the timer fires: far in the future until the first check.
    let mut due = u64::MAX;
    let mut timer = pin!(sleep(limits.idle));
    poll_fn(|cx| {
        if !is_ending && stop.as_mut().poll(cx).is_ready() {
            is_ending = true;
            shut_down(connection.as_mut(), cx);
        }
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        loop {
            match activity.judge(now_ms(), limits) {
                Verdict::Idle if !is_ending => {
                    is_ending = true;
                    activity.progress();
                    shut_down(connection.as_mut(), cx);
                    if connection.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(false);
                    }
                }
                Verdict::Idle => return Poll::Ready(false),
                Verdict::TooSlow => {
                    let is_responding = activity.in_flight.load(Relaxed) > 0;
                    return Poll::Ready(is_responding && activity.is_blocked());
                }
                Verdict::Fine(next) => {
                    // If a limit moves later, the timer stays as it is: when it fires, this checks
                    // again. So a request moves no timer.
                    if next < due {
                        due = next;
                        let left = Duration::from_millis(next.saturating_sub(now_ms()));
                        timer.as_mut().reset(tokio::time::Instant::now() + left);
                    }
                    if timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    due = u64::MAX;
                }
            }
        }
    })
    .await
}

/// What is read from a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Http1,
    /// Frames, which reveal nothing about requests.
    Http2,
    /// Another protocol after an upgrade.
    Tunnel,
}

/// How long a connection that has ended waits for its client to close it.
const LINGER: Duration = Duration::from_secs(2);

/// A transport that records what it reads and whether it can write.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    inner: T,
    activity: Arc<Activity>,
    kind: Kind,
    /// How long to wait for the client's end once ours has been sent.
    lingers: Option<Pin<Box<Sleep>>>,
}

impl<T> Watched<T> {
    pub(crate) fn new(inner: T, activity: Arc<Activity>, kind: Kind) -> Self {
        Self {
            inner,
            activity,
            kind,
            lingers: None,
        }
    }

    fn note<O>(&self, write: Poll<O>) -> Poll<O> {
        self.activity.on_write(write.is_pending());
        write
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.on_read(self.kind);
        }
        read
    }
}

impl<T: AsyncRead + Unpin> Watched<T> {
    /// Keeps reading until the client closes. TCP resets a connection that is closed with unread
    /// data, such as credit for an HTTP/2 stream, and anything still on its way to the client is
    /// lost with it (RFC 9112 §9.6).
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.lingers.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            let mut unread = [0; 4096];
            let mut buffer = ReadBuf::new(&mut unread);
            let read = ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.note(write)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush = Pin::new(&mut self.inner).poll_flush(cx);
        self.note(flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingers.is_none() {
            let shutdown = Pin::new(&mut self.inner).poll_shutdown(cx);
            ready!(self.note(shutdown))?;
        }
        // The client's half of a tunnel continues.
        if self.kind == Kind::Tunnel || self.activity.tunnels.load(Relaxed) > 0 {
            return Poll::Ready(Ok(()));
        }
        self.poll_linger(cx).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.note(write)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        header: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        send: Duration::from_secs(20),
        body: Duration::from_secs(20),
        stall: Duration::from_secs(80),
    };

    fn at(in_flight: u32, progress: u64, head_since: u64, blocked_since: u64) -> Activity {
        Activity {
            in_flight: in_flight.into(),
            tunnels: 0.into(),
            progress: progress.into(),
            head_since: head_since.into(),
            blocked_since: blocked_since.into(),
        }
    }

    #[test]
    fn each_kind_of_slowness_has_its_limit() {
        use Verdict::{Fine, Idle, TooSlow};
        let cases = [
            (at(0, 1, 0, 0), 60_000, Fine(60_001)),
            (at(0, 1, 0, 0), 60_001, Idle),
            (at(1, 1, 0, 0), 60_001, Fine(80_001)),
            (at(1, 1, 0, 0), 80_001, TooSlow),
            (at(0, 1, 5, 0), 10_004, Fine(10_005)),
            (at(0, 1, 5, 0), 10_005, TooSlow),
            (at(0, 1, 55_000, 0), 60_001, Idle),
            (at(1, 1, 0, 7), 20_006, Fine(20_007)),
            (at(1, 1, 0, 7), 20_007, TooSlow),
        ];
        for (activity, now, expected) in cases {
            assert_eq!(
                activity.judge(now, &LIMITS),
                expected,
                "{activity:?} at {now}"
            );
        }
    }

    #[test]
    fn a_connection_with_a_tunnel_is_neither_idle_nor_stalled() {
        for in_flight in [0, 1] {
            let activity = at(in_flight, 1, 0, 0);
            activity.start_tunnel();
            let later = Verdict::Fine(1_060_000);
            assert_eq!(activity.judge(1_000_000, &LIMITS), later, "{in_flight}");
            // Its client must take what is sent all the same.
            activity.blocked_since.store(5, Relaxed);
            assert_eq!(activity.judge(1_000_000, &LIMITS), Verdict::TooSlow);
        }
        let activity = at(0, 1, 0, 0);
        activity.start_tunnel();
        activity.finish_tunnel();
        let ended = activity.progress.load(Relaxed);
        assert_eq!(activity.judge(ended + 60_000, &LIMITS), Verdict::Idle);
    }

    #[test]
    fn head_time_runs_from_the_first_byte_until_the_request() {
        let activity = at(0, 1, 0, 0);
        activity.on_read(Kind::Http2);
        assert_eq!(activity.head_since.load(Relaxed), 0);
        activity.on_read(Kind::Http1);
        let since = activity.head_since.load(Relaxed);
        assert_ne!(since, 0);
        activity.start();
        assert_eq!(activity.head_since.load(Relaxed), 0);
        // The body.
        activity.on_read(Kind::Http1);
        assert_eq!(activity.head_since.load(Relaxed), 0);
        activity.finish();
        assert_eq!(activity.in_flight.load(Relaxed), 0);
    }

    #[test]
    fn blocked_time_runs_from_a_blocked_write_until_one_succeeds() {
        let activity = at(1, 1, 0, 0);
        activity.on_write(true);
        let since = activity.blocked_since.load(Relaxed);
        assert_ne!(since, 0);
        activity.on_write(true);
        assert_eq!(activity.blocked_since.load(Relaxed), since);
        activity.on_write(false);
        assert_eq!(activity.blocked_since.load(Relaxed), 0);
    }
}
