//! A socket's counters: every possible fate of a datagram, so that no loss goes unnoticed.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::errors::{ErrorCounts, ErrorTable};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A reading of a socket's counters, all since the socket was bound.
        #[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Losses and failed receive calls, by error number.
            pub errors: ErrorCounts,
        }

        impl std::ops::AddAssign for Stats {
            /// The sum over several sockets.
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
                self.errors += other.errors;
            }
        }

        /// The counters themselves. One thread counts at a time in practice; any thread may read.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
            pub(crate) errors: ErrorTable,
        }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats {
                    $($name: self.$name.get(),)*
                    errors: self.errors.read(),
                }
            }
        }
    };
}

counters! {
    /// System calls that send (on Linux `sendmmsg`), failed ones included.
    send_calls,
    /// Calls among them that found the send buffer full.
    send_blocked,
    /// Rounds of receiving, including empty ones: one `recvmmsg` each on Linux, on other systems as
    /// many calls as it takes to fill the batch or empty the queue.
    recv_calls,
    /// Messages given to the kernel: GSO bundles and single datagrams.
    messages_sent,
    /// Datagrams given to the kernel.
    datagrams_sent,
    /// Bytes of UDP payload given to the kernel.
    bytes_sent,
    /// Messages received: GRO bundles and single datagrams.
    messages_received,
    /// Datagrams received.
    datagrams_received,
    /// Bytes of UDP payload received.
    bytes_received,
    /// Bundles that the kernel or the device refused and that were resent at once as single
    /// datagrams.
    gso_fallbacks,
    /// Times GSO was switched off for a destination, for a minute, because a device on the way
    /// refused bundles.
    gso_disabled,
    /// Single datagrams dropped because they exceed the MTU of their route (EMSGSIZE).
    send_too_large,
    /// Messages dropped because the system refused them, for any reason except their size; `errors`
    /// lists the reasons.
    send_errors,
    /// Errors among `send_errors` that networks and firewalls are not known to cause.
    send_errors_unknown,
    /// Receive calls that failed: ICMP-like errors, which are skipped, and others, after which a
    /// worker waits a while.
    recv_errors,
    /// Received messages dropped because they did not fit their buffer.
    recv_truncated,
    /// Datagrams that the kernel dropped because the receive buffer was full (`SO_RXQ_OVFL`).
    recv_dropped,
}

/// A counter that costs one relaxed addition.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
