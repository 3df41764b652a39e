//! Servers: a handler for each attempt to connect, on the worker at which it arrived.
//!
//! ```text
//!   worker 0 ─ its attempts ─> a task on worker 0 ─> handler      no other thread is woken
//!   worker 1 ─ its attempts ─> a task on worker 1 ─> handler
//!       attempts of workers without such a task ─> the caller's task, which starts one
//! ```
//! A worker that was restarted after `serve` was called has no such task.

use std::future::{Future, poll_fn};
use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::incoming::Incoming;
use crate::worker::{self, AcceptPlace, Common, Shared};

impl Endpoint {
    /// Accepts every attempt and runs `handler` for each connection, on the connection's own
    /// worker, until [`accept`](Self::accept) returns `None`. Failed handshakes are skipped; the
    /// client receives the reason.
    ///
    /// If the future is dropped, further attempts wait for the next call of this or of
    /// [`accept`](Self::accept), and running handlers continue. A handler that panics ends, and
    /// drops what it owns; its worker and all other connections continue.
    pub async fn serve<H, F>(&self, handler: H)
    where
        H: Fn(Connection) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.serve_incoming(move |incoming| {
            let handler = Arc::clone(&handler);
            async move {
                if let Ok(connection) = incoming.await {
                    handler(connection).await;
                }
            }
        })
        .await;
    }

    /// As [`serve`](Self::serve), for handlers that decide about each attempt themselves: accept it
    /// before the handshake is complete, refuse it, or ask for the address to be validated.
    ///
    /// An attempt is handled on the worker at which it arrived, and its connection stays there, so
    /// no other thread is woken. With [`accept`](Self::accept), attempts go to the caller's thread
    /// and back. If the future is dropped, the effect is the same as with `serve`.
    pub async fn serve_incoming<H, F>(&self, handler: H)
    where
        H: Fn(Incoming) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let (common, workers) = self.workers();
        let start = |worker: &Arc<Shared>| {
            let (common, worker) = (Arc::clone(common), Arc::clone(worker));
            let handler = Arc::clone(&handler);
            EndsWithServe(worker::spawn(
                &Arc::clone(&worker),
                serve_own(common, worker, handler),
            ))
        };
        let mut tasks: Vec<EndsWithServe> = workers.iter().map(start).collect();
        while let Some(incoming) = self.accept().await {
            let worker = Arc::clone(incoming.shared());
            if let Some(task) = tasks.get_mut(worker.index)
                && task.0.is_finished()
            {
                *task = start(&worker);
            }
            worker::spawn(&worker, handler(incoming));
        }
    }
}

/// Handles the attempts of the worker that this runs on. It holds no handle of the endpoint.
async fn serve_own<H, F>(common: Arc<Common>, worker: Arc<Shared>, handler: Arc<H>)
where
    H: Fn(Incoming) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let mut place = AcceptPlace::for_offers_of(&common, worker.index);
    while let Some(offer) = poll_fn(|cx| place.poll_offer(cx)).await {
        let incoming = Incoming::new(Arc::clone(&worker), offer);
        worker::spawn(&worker, handler(incoming));
    }
}

/// A task that is cancelled when this is dropped.
struct EndsWithServe(JoinHandle<()>);

impl Drop for EndsWithServe {
    fn drop(&mut self) {
        self.0.abort();
    }
}
