//! The counters of a worker, for the endpoint's statistics.

use std::sync::atomic::{AtomicU64, Ordering};

use squall_core::EndpointCounts;

macro_rules! worker_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an endpoint since it was built.
        #[derive(Clone, Copy, Debug, Default)]
        #[non_exhaustive]
        pub struct EndpointStats {
            $($(#[$doc])* pub $name: u64,)*
            /// How datagrams that belong to no connection were handled.
            pub unrouted: EndpointCounts,
            /// The socket's own counters: calls, bundles, datagrams, drops.
            pub udp: squall_udp::Stats,
        }

        /// The worker's counters; only the worker writes.
        #[derive(Default)]
        pub(crate) struct WorkerCounters { $(pub(crate) $name: Counter,)* }

        impl WorkerCounters {
            pub(crate) fn read(
                &self,
                unrouted: EndpointCounts,
                udp: squall_udp::Stats,
            ) -> EndpointStats {
                EndpointStats { $($name: self.$name.get(),)* unrouted, udp }
            }
        }

        impl std::ops::AddAssign for EndpointStats {
            /// The sum over several workers.
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
                self.unrouted += other.unrouted;
                self.udp += other.udp;
            }
        }
    };
}

worker_counters! {
    /// Connections that currently exist, including closing ones.
    connections,
    /// Iterations of the worker's loop: receive, time out, transmit.
    turns,
    /// Runs of datagrams handed to connections.
    runs_received,
    /// Runs dropped because they belong to no connection: too short, or an unknown connection id.
    runs_discarded,
    /// Runs that belonged to another worker of the endpoint and were forwarded to it: where the
    /// kernel cannot steer, or because a bundle holds datagrams of several connections. Also those
    /// forwarded to the process from which the endpoint took over its port.
    runs_forwarded,
    /// Runs dropped because the worker, or the process, that they belong to had too many of them
    /// waiting.
    forwards_dropped,
    /// Stateless responses sent, of any kind; `unrouted` counts each kind.
    responses,
    /// Connection attempts dropped because the accept queue was full.
    incoming_dropped,
    /// Times the worker took a connection's lock: once per received run and once per round of
    /// transmission.
    locks,
    /// Deadlines that had to be filed again in the timer wheel.
    timer_updates,
    /// Tasks woken.
    wakeups,
    /// Times the worker let bulk data collect in its socket, see
    /// [`Builder::receive_coalescing`](crate::Builder::receive_coalescing).
    naps,
    /// Times the worker ended prematurely, see
    /// [`Endpoint::worker_ended`](crate::Endpoint::worker_ended).
    worker_ends,
    /// Connections that ended with a worker, including closing ones.
    connections_lost,
    /// Estimated memory of the connections, in bytes: state, data written and not yet acknowledged,
    /// data received and not yet read, and records of packets in flight, as of each connection's
    /// last turn. 0 unless [`Builder::max_memory`](crate::Builder::max_memory) is set.
    memory,
    /// Qlogs that could not be opened, or not written completely.
    qlogs_failed,
    /// Events whose subscriber panicked, see [`Events`](crate::Events).
    event_panics,
}

/// A counter with one writer: a load and a store, no locked instruction.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.set(self.get() + n);
    }

    /// Adds to a counter that other threads also write.
    pub(crate) fn add_from_anywhere(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
