//! A request's tunnel in the hands of the application: see [`crate::tunnels`].

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::shared::Shared;
use crate::tunnels::Tunnel;

/// A tunnel that stays open as long as one of these is held.
pub(crate) struct TunnelHandle {
    pub(crate) shared: Arc<Shared>,
    /// The request's stream id.
    pub(crate) id: u64,
    /// Whether the request is over with this handle: it is that of a WebTransport session.
    is_session: bool,
    tunnel: Arc<Tunnel>,
}

impl TunnelHandle {
    /// Opens the tunnel of the request with this stream id, with anything that has arrived for it.
    pub(crate) fn open(shared: &Arc<Shared>, id: u64, is_session: bool) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            is_session,
            tunnel: shared.tunnels.open(id),
        }
    }

    /// Ends the session: its streams are reset, nothing more arrives for it, and the tasks that
    /// wait are woken.
    pub(crate) fn end(&self) {
        self.shared.tunnels.end(self.id);
    }
}

impl Deref for TunnelHandle {
    type Target = Tunnel;

    fn deref(&self) -> &Tunnel {
        &self.tunnel
    }
}

impl Drop for TunnelHandle {
    fn drop(&mut self) {
        if self.is_session {
            self.end();
        } else {
            self.shared.tunnels.release(self.id, &self.tunnel);
        }
    }
}

impl fmt::Debug for TunnelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TunnelHandle")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
