//! A request's tunnel in the hands of the application: see [`crate::tunnels`].

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use squall::{RecvStream, SendStream};

use crate::shared::Shared;
use crate::tunnels::Tunnel;

/// A tunnel that stays open as long as this is held.
pub(crate) struct TunnelHandle {
    pub(crate) shared: Arc<Shared>,
    /// The request's stream id.
    pub(crate) id: u64,
    tunnel: Arc<Tunnel>,
}

impl TunnelHandle {
    /// Opens the tunnel of the request with this stream id, with anything that has arrived for it.
    pub(crate) fn open(shared: &Arc<Shared>, id: u64) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            tunnel: shared.tunnels.open(id),
        }
    }

    /// Nothing more arrives for the request: wakes the tasks that wait.
    pub(crate) fn close(&self) {
        self.tunnel.close();
    }

    /// The next bidirectional stream; `None` when the tunnel is closed.
    pub(crate) fn poll_bi(
        &self,
        cx: &Context<'_>,
    ) -> Poll<Option<(SendStream, RecvStream, Bytes)>> {
        self.tunnel.poll_bi(cx)
    }

    /// The next unidirectional stream; `None` when the tunnel is closed.
    pub(crate) fn poll_uni(&self, cx: &Context<'_>) -> Poll<Option<(RecvStream, Bytes)>> {
        self.tunnel.poll_uni(cx)
    }

    /// The next datagram; `None` when the tunnel is closed and all are taken.
    pub(crate) fn poll_datagram(&self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        self.tunnel.poll_datagram(cx)
    }

    /// Ready when the tunnel is closed.
    pub(crate) fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        self.tunnel.poll_closed(cx)
    }
}

impl Drop for TunnelHandle {
    fn drop(&mut self) {
        self.tunnel.close();
        self.shared.tunnels.forget(self.id);
    }
}

impl fmt::Debug for TunnelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TunnelHandle")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
