//! The session tickets that a client receives: kept, counted, and handed out on demand.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, NamedGroup};
use tokio::sync::Notify;

/// The tickets that a client receives.
#[derive(Debug, Default)]
pub struct Watch {
    tickets: Mutex<Tickets>,
    arrived: AtomicU64,
    news: Notify,
}

#[derive(Debug, Default)]
struct Tickets {
    /// Whether to hand them out.
    give: bool,
    kept: VecDeque<Tls13ClientSessionValue>,
}

/// Maximum number of tickets kept, and so of handshakes at a time; the oldest are dropped first.
pub const MAX_TICKETS: usize = 1_000;

impl Watch {
    /// Watches a client's handshakes.
    pub fn over(tls: &mut ClientConfig) -> Arc<Self> {
        let watch = Arc::default();
        Self::also_over(&watch, tls);
        watch
    }

    /// Watches those of one more configuration too.
    pub fn also_over(watch: &Arc<Self>, tls: &mut ClientConfig) {
        tls.resumption = Resumption::store(Arc::clone(watch) as Arc<dyn ClientSessionStore>);
        // Sent only if the application asks for it before the end of the handshake.
        tls.enable_early_data = true;
    }

    /// Forgets all tickets: they may belong to another server.
    pub fn forget(&self) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        *tickets = Tickets::default();
    }

    /// Sets whether tickets are handed out from now on.
    pub fn give(&self, give: bool) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.give = give;
    }

    /// Number of tickets kept.
    pub fn kept(&self) -> usize {
        let tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.kept.len()
    }

    /// Number of tickets that have arrived since the beginning.
    pub fn count(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Waits until this many tickets have arrived since the beginning.
    pub async fn arrived(&self, count: u64) {
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            if self.arrived.load(Ordering::Relaxed) >= count {
                return;
            }
            news.await;
        }
    }
}

impl ClientSessionStore for Watch {
    fn set_kx_hint(&self, _server_name: ServerName<'static>, _group: NamedGroup) {}

    /// No hint: every handshake offers the same key shares.
    fn kx_hint(&self, _server_name: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(
        &self,
        _server_name: ServerName<'static>,
        _value: Tls12ClientSessionValue,
    ) {
    }

    fn tls12_session(&self, _server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _server_name: &ServerName<'static>) {}

    fn insert_tls13_ticket(
        &self,
        _server_name: ServerName<'static>,
        value: Tls13ClientSessionValue,
    ) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        if tickets.kept.len() == MAX_TICKETS {
            tickets.kept.pop_front();
        }
        tickets.kept.push_back(value);
        drop(tickets);
        self.arrived.fetch_add(1, Ordering::Relaxed);
        self.news.notify_waiters();
    }

    fn take_tls13_ticket(
        &self,
        _server_name: &ServerName<'static>,
    ) -> Option<Tls13ClientSessionValue> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        // The newest: a server remembers a few hundred and forgets the oldest first.
        if tickets.give {
            tickets.kept.pop_back()
        } else {
            None
        }
    }
}
