//! The predecessor's side of a takeover: see `takeover`.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

use crate::endpoint::Endpoint;
use crate::takeover::{Greeting, Link, Listener, MAX_DESCRIPTORS, WatchedChannel, Word};
use crate::worker::{HeldRun, Shared};

/// Maximum number of earlier processes that a successor forwards to: each gets a copy of every
/// datagram that belongs to no connection of the successor.
const MAX_PREDECESSORS: usize = 16;
/// How long a successor may take until it is ready, for example to load certificates and fill
/// caches.
const TO_GET_READY: Duration = Duration::from_secs(60);
/// How long the successor's workers may take to start.
const TO_START: Duration = Duration::from_secs(10);
/// How often to check that the socket's file is still in place.
const LOOK: Duration = Duration::from_secs(2);
/// The wait after turning a process away, or after a system error.
const PAUSE: Duration = Duration::from_millis(100);

impl Endpoint {
    /// Waits until another process of the same user asks for the endpoint's port at `path`, a Unix
    /// socket, and hands it over: for an upgrade that costs no connection and no attempt. The other
    /// process asks with [`Takeover::request`](crate::Takeover::request). Linux only.
    ///
    /// ```no_run
    /// # use squall::{Builder, Endpoint, Takeover};
    /// # async fn serve(endpoint: &Endpoint) {}
    /// # async fn run(builder: Builder) -> std::io::Result<()> {
    /// let path = "/run/example/takeover";
    /// // From the process that runs, if there is one.
    /// let endpoint = match Takeover::request(path)? {
    ///     Some(takeover) => builder.take_over(takeover).bind()?,
    ///     None => builder.bind()?,
    /// };
    /// tokio::select! {
    ///     () = serve(&endpoint) => {}
    ///     handed_over = endpoint.hand_over(path, &[]) => handed_over?,
    /// }
    /// // Existing connections continue until they are closed.
    /// endpoint.wait_idle().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Once this has returned, this endpoint keeps its connections, and new ones are accepted by
    /// the other process. [`accept`](Self::accept) returns the attempts that already wait, then
    /// `None`; [`connect`](Self::connect) fails, and so do [`rebind`](Self::rebind) and
    /// [`restart_worker`](Self::restart_worker). The other process reads the sockets and forwards
    /// datagrams that belong to this endpoint's connections; this endpoint still sends through the
    /// sockets. If the other process ends first, this one reads the sockets again, but ignores
    /// connection attempts. To hand over to another successor then, call this again: it first waits
    /// until the current one has ended. Without that call, the port stays in use until this process
    /// ends.
    ///
    /// The successor gets the keys of stateless resets and tokens, so that it accepts clients that
    /// this process has sent a Retry, and duplicates of `descriptors`, at most 253: a TCP listener
    /// on the same port, for example. TLS session tickets remain valid only if both processes
    /// encrypt them with the same keys.
    ///
    /// The file at `path` can be opened by every process that may enter its directory, but only
    /// processes of the same user, or of root, get the port. A file that an earlier process left
    /// behind is replaced. If the file is removed, it is made again within seconds.
    ///
    /// The successor may hand over in its turn while this process still has connections; up to 16
    /// processes may be left over in this way. While there are any, no stateless resets are sent.
    ///
    /// If several calls wait, the second begins to listen when the first has ended.
    ///
    /// Cancel-safe: if the future is dropped, the endpoint goes on as before, and a process that
    /// has asked for the port gets an error.
    ///
    /// # Errors
    /// Another process listens at `path` (`AddrInUse`), the path is unusable, more than 253
    /// descriptors were passed (`InvalidInput`), the endpoint uses a
    /// [`DatagramSocket`](crate::DatagramSocket) (`Unsupported`), it is closed (`NotConnected`), or
    /// the worker that waited has ended (`Other`): call this again. A successor that fails before
    /// it has taken over costs nothing: this waits for the next.
    pub async fn hand_over(
        &self,
        path: impl AsRef<Path>,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let path = path.as_ref().to_owned();
        let copies = descriptors.iter().map(BorrowedFd::try_clone_to_owned);
        let handover = Handover {
            endpoint: self.clone(),
            path,
            descriptors: copies.collect::<io::Result<_>>()?,
        };
        // On a worker, whose runtime has an I/O driver: the caller's may have none.
        let task = self.spawn(handover.run());
        let _aborted = AbortOnDrop(task.abort_handle());
        match task.await {
            Ok(result) => result,
            Err(_) => Err(io::Error::other(
                "the worker that waited for a successor has ended",
            )),
        }
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What is handed over, and where.
struct Handover {
    endpoint: Endpoint,
    path: PathBuf,
    descriptors: Vec<OwnedFd>,
}

impl Handover {
    async fn run(self) -> io::Result<()> {
        if self.descriptors.len() > MAX_DESCRIPTORS {
            let why = "at most 253 descriptors can be handed over";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        if self.endpoint.settings().carrier.is_some() {
            let why = "a DatagramSocket cannot be handed over";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let (common, _) = self.endpoint.workers();
        let mut closed = pin!(common.closed());
        let mut waiting = pin!(self.wait());
        poll_fn(|cx| {
            if closed.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(ended()));
            }
            waiting.as_mut().poll(cx)
        })
        .await
    }

    /// Waits for a successor.
    async fn wait(&self) -> io::Result<()> {
        let (common, _) = self.endpoint.workers();
        let mut links = common.handover.lock().await;
        // While the last successor runs, the port is its own.
        while let Some(link) = links.last_mut() {
            let _ = link.await;
            links.pop();
        }
        // Kept when a successor fails, since the next one may already wait in its queue. Without a
        // listener, the port would seem to be free.
        let mut listener = None;
        let mut has_failed = false;
        loop {
            let bound = match listener.take().filter(Listener::is_in_place) {
                Some(bound) => bound,
                None => Listener::bind(&self.path)?,
            };
            let waiting = listener.insert(bound);
            if has_failed {
                tokio::time::sleep(PAUSE).await;
            }
            let result = match accept(waiting).await {
                Ok(channel) => self.hand_over(&Successor(channel), &mut listener).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(new) => {
                    *links = new;
                    return Ok(());
                }
                Err(error) => crate::warnings::not_handed_over(&self.path, &error),
            }
            has_failed = true;
        }
    }

    /// Hands over to a process that has asked. Returns the tasks that receive what it forwards.
    /// Stops listening before the successor may listen.
    async fn hand_over(
        &self,
        successor: &Successor,
        listener: &mut Option<Listener>,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        let prepared = match self.prepare() {
            Ok(prepared) => prepared,
            Err(error) => {
                let message = [&Word::Refused.bytes()[..], error.to_string().as_bytes()].concat();
                successor.send(&message, &[])?;
                return Err(error);
            }
        };
        successor.send(&self.greeting(prepared.len()).encode(), &[])?;
        let word = Word::Descriptors.bytes();
        for (worker, (socket, _, theirs)) in prepared.iter().enumerate() {
            let links = self.older(worker).chain([theirs]).map(AsFd::as_fd);
            let fds: Vec<_> = [socket.as_fd()].into_iter().chain(links).collect();
            successor.send(&word, &fds)?;
        }
        if !self.descriptors.is_empty() {
            let descriptors: Vec<_> = self.descriptors.iter().map(AsFd::as_fd).collect();
            successor.send(&word, &descriptors)?;
        }
        let ours: Vec<Link> = prepared.into_iter().map(|(_, ours, _)| ours).collect();
        successor.expect(Word::Ready, TO_GET_READY).await?;
        // From here on, an error or a cancellation makes the workers read again.
        let stopped = Stopped::stop(&self.endpoint, ours).await?;
        successor.send(&Word::Stopped.bytes(), &[])?;
        successor.expect(Word::Done, TO_START).await?;
        // Closed first, because the successor may listen at the path as soon as it has the port. If
        // it fails before that, this process listens again.
        *listener = None;
        // Nothing can interrupt the rest: the port is the successor's if and only if this is sent.
        successor.send(&Word::Done.bytes(), &[])?;
        let (common, _) = self.endpoint.workers();
        common.on_handed_over();
        Ok(stopped.done())
    }

    /// A worker's links to the predecessors of this process that still run.
    fn older(&self, worker: usize) -> impl Iterator<Item = &Link> {
        let (common, _) = self.endpoint.workers();
        common.links(worker).iter().filter(|link| !link.is_gone())
    }

    /// The workers' sockets, each with both ends of a link.
    fn prepare(&self) -> io::Result<Vec<(OwnedFd, Link, Link)>> {
        if self.older(0).count() >= MAX_PREDECESSORS {
            let why = format!("{MAX_PREDECESSORS} earlier processes still have connections");
            return Err(io::Error::other(why));
        }
        let sockets = self.endpoint.duplicate_sockets()?.into_iter();
        sockets
            .map(|socket| {
                let (ours, theirs) = Link::pair()?;
                Ok((socket, ours, theirs))
            })
            .collect()
    }

    fn greeting(&self, workers: usize) -> Greeting {
        let settings = self.endpoint.settings();
        Greeting {
            workers: u8::try_from(workers).unwrap_or(u8::MAX),
            id_len: u8::try_from(settings.connection_ids.len()).unwrap_or(u8::MAX),
            descriptors: u8::try_from(self.descriptors.len()).unwrap_or(u8::MAX),
            reset_key: settings.reset_key,
            token_key: settings.token_key,
        }
    }
}

/// Waits for a process that connects.
///
/// # Errors
/// The file at the path is gone (`NotFound`), and those of [`Listener::accept`].
async fn accept(listener: &Listener) -> io::Result<WatchedChannel> {
    loop {
        if let Ok(accepted) = timeout(LOOK, listener.accept()).await {
            return accepted;
        }
        if !listener.is_in_place() {
            let why = "the socket at the path was removed";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
    }
}

/// The process that takes over.
struct Successor(WatchedChannel);

impl Successor {
    /// The few messages fit the socket's buffer.
    fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.send(&[message], fds)
    }

    async fn expect(&self, word: Word, patience: Duration) -> io::Result<()> {
        let (mut message, mut fds) = ([0; 16], Vec::new());
        match timeout(patience, self.0.receive(&mut message, &mut fds)).await {
            Ok(Ok(1..)) if word.is(&message) => Ok(()),
            Ok(Ok(_)) => Err(io::Error::other("the successor ended before it took over")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the successor did not get ready in time")),
        }
    }
}

/// Workers that do not read their sockets. Dropping this makes them read again.
struct Stopped {
    workers: Vec<Arc<Shared>>,
    /// The tasks that receive what the successor forwards.
    links: Vec<JoinHandle<()>>,
    is_done: bool,
}

impl Stopped {
    /// Stops the workers from reading their sockets; each receives from its link instead.
    async fn stop(endpoint: &Endpoint, links: Vec<Link>) -> io::Result<Self> {
        let (_, workers) = endpoint.workers();
        let mut stopped = Self {
            workers: workers.to_vec(),
            links: Vec::new(),
            is_done: false,
        };
        for (worker, link) in workers.iter().zip(links) {
            let runtime = worker.runtime();
            let link = {
                let _entered = runtime.enter();
                link.watch()?
            };
            let shared = Arc::clone(worker);
            let task = runtime.spawn(async move {
                link.receive_all(|run| {
                    // If the worker does not keep up, the datagrams are lost, as if in transit.
                    if !shared.forward(HeldRun::of(run)) {
                        shared.counters.forwards_dropped.add_from_anywhere(1);
                    }
                })
                .await;
                // The successor has ended.
                shared.read_again();
            });
            stopped.links.push(task);
        }
        for worker in workers {
            worker.stop_reading().await.map_err(|_| ended())?;
        }
        Ok(stopped)
    }

    /// The workers stay stopped until the successor ends; that also ends the returned tasks.
    fn done(mut self) -> Vec<JoinHandle<()>> {
        self.is_done = true;
        std::mem::take(&mut self.links)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        self.links.iter().for_each(JoinHandle::abort);
        for worker in &self.workers {
            worker.read_again();
        }
    }
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the endpoint is closed")
}
