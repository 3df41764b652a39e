//! The clocks of a measurement: endpoint counters, and CPU time of threads and of this process.

use std::time::{Duration, Instant};

use squall::{Endpoint, Stage, Stages};

use crate::stages::{Both, Clocks, Rates, Sample, Table};
use crate::work::Flow;
use crate::{cpu, sys};

/// One end's counters at one moment.
#[derive(Debug)]
pub struct Reading {
    stages: Stages,
    cpu: Duration,
    preemptions: u64,
    datagrams_sent: u64,
    messages_sent: u64,
    datagrams_received: u64,
}

impl Reading {
    /// The counters of an endpoint now.
    pub fn of(endpoint: &Endpoint) -> Self {
        let udp = endpoint.stats().udp;
        let threads = endpoint.worker_thread_ids();
        Self {
            stages: endpoint.stages(),
            cpu: (threads.iter().copied())
                .filter_map(sys::thread_cpu_of)
                .sum(),
            preemptions: (threads.iter().copied())
                .filter_map(sys::preemptions_of)
                .sum(),
            datagrams_sent: udp.datagrams_sent,
            messages_sent: udp.messages_sent,
            datagrams_received: udp.datagrams_received,
        }
    }

    /// What an endpoint has counted since this reading.
    pub fn until_now(&self, endpoint: &Endpoint, volume: Volume) -> Sample {
        let now = Self::of(endpoint);
        let ticks = |stage: Stage| {
            let of = |reading: &Self| reading.stages.ticks()[stage as usize];
            of(&now) - of(self)
        };
        let stages = Stage::ALL
            .into_iter()
            .filter(|stage| !matches!(stage, Stage::Idle | Stage::Other))
            .map(|stage| (stage.name(), ticks(stage)))
            .collect();
        let sent = now.datagrams_sent - self.datagrams_sent;
        let received = now.datagrams_received - self.datagrams_received;
        let (packets, bytes, operations) = match volume {
            Volume::Sent(bytes) => (sent, bytes, 0),
            Volume::Received(bytes) => (received, bytes, 0),
            Volume::Both(bytes) => (sent + received, bytes, 0),
            Volume::Operations(count) => (sent + received, 0, count),
        };
        Sample {
            stages,
            waits: now.stages.waits().since(&self.stages.waits()),
            stamps: now.stages.stamps() - self.stages.stamps(),
            cpu: now.cpu.saturating_sub(self.cpu),
            preemptions: now.preemptions.saturating_sub(self.preemptions),
            packets,
            bytes,
            operations,
        }
    }

    /// What an endpoint has sent since this reading.
    pub fn sent_until_now(&self, endpoint: &Endpoint) -> Sent {
        let udp = endpoint.stats().udp;
        Sent {
            datagrams: udp.datagrams_sent - self.datagrams_sent,
            messages: udp.messages_sent - self.messages_sent,
        }
    }
}

/// UDP datagrams, and the messages in which they were passed to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Number of datagrams.
    pub datagrams: u64,
    /// Number of bundles.
    pub messages: u64,
}

impl Sent {
    /// Average datagrams per bundle; `None` if nothing was sent.
    pub fn datagrams_per_message(self) -> Option<f64> {
        (self.messages > 0).then(|| self.datagrams as f64 / self.messages as f64)
    }
}

/// What both ends used for their work, in one round or several.
#[derive(Clone, Debug, Default)]
pub struct Used {
    /// The server's and the client's thread; without `ksoftirqd`.
    pub ends: [Sample; 2],
    /// All threads of this process.
    pub process: Duration,
    /// What the server sent.
    pub server_sent: Sent,
}

impl Used {
    /// Adds another round.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.ends.iter_mut().zip(&other.ends) {
            sum.add(more);
        }
        self.process += other.process;
        self.server_sent.datagrams += other.server_sent.datagrams;
        self.server_sent.messages += other.server_sent.messages;
    }

    /// The cost by stage; `None` where nothing was moved.
    pub fn tables(&self, rates: Rates) -> Option<Both> {
        let [server, client] = &self.ends;
        let (server, client) = (Table::new(server, rates)?, Table::new(client, rates)?);
        let both = server.cpu_s + client.cpu_s;
        let part = |of: fn(&Table) -> f64| {
            (of(&server) * server.cpu_s + of(&client) * client.cpu_s) / 100.0
        };
        Some(Both {
            process_cpu_s: self.process.as_secs_f64(),
            attributed_percent: (!server.preempted && !client.preempted)
                .then(|| part(Table::attributed_percent) / self.process.as_secs_f64() * 100.0),
            overhead_percent: part(Table::overhead_percent) / both * 100.0,
            server,
            client,
            core_ghz: rates.core_ghz,
            clocks: rates.clocks,
        })
    }
}

/// What was moved, by which the cost is divided.
#[derive(Clone, Copy, Debug)]
pub enum Volume {
    /// Bytes that this end sent.
    Sent(u64),
    /// Bytes that this end received.
    Received(u64),
    /// Bytes that this end sent and received at the same time.
    Both(u64),
    /// Requests or handshakes.
    Operations(u64),
}

impl Volume {
    /// Bytes of a flow, as the server sees them.
    pub fn of_server(flow: Flow, bytes: u64) -> Self {
        match flow {
            Flow::Down => Self::Sent(bytes),
            Flow::Up => Self::Received(bytes),
            Flow::Both => Self::Both(bytes),
        }
    }

    /// Bytes of a flow, as the client sees them.
    pub fn of_client(flow: Flow, bytes: u64) -> Self {
        match flow {
            Flow::Down => Self::Received(bytes),
            Flow::Up => Self::Sent(bytes),
            Flow::Both => Self::Both(bytes),
        }
    }
}

/// The rate of the time-stamp counter, over the time since it was started.
pub struct Ticker {
    ticks: u64,
    at: Instant,
}

impl Ticker {
    /// Starts.
    pub fn start() -> Self {
        Self {
            ticks: squall::ticks(),
            at: Instant::now(),
        }
    }

    /// Nanoseconds per tick of the counter.
    pub fn ns_per_tick(&self) -> f64 {
        let ticks = squall::ticks().wrapping_sub(self.ticks).max(1);
        self.at.elapsed().as_secs_f64() * 1e9 / ticks as f64
    }

    /// What turns stamps into time.
    pub fn rates(&self) -> Rates {
        Rates {
            ns_per_tick: self.ns_per_tick(),
            clocks: Clocks {
                ns_per_stamp: ns_per_stamp(),
                ns_per_cpu_reading: ns_per_cpu_reading(),
            },
            core_ghz: cpu::core_ghz(),
        }
    }
}

/// The measured cost of one stamp in nanoseconds.
fn ns_per_stamp() -> f64 {
    let mut stages = Stages::on(squall::ticks);
    ns_each(100_000, || stages.mark(std::hint::black_box(Stage::Other)))
}

/// The measured cost of one reading of the thread's CPU clock in nanoseconds.
fn ns_per_cpu_reading() -> f64 {
    ns_each(10_000, || {
        std::hint::black_box(sys::thread_cpu());
    })
}

/// Nanoseconds per call, in the best of five series.
fn ns_each(calls: u32, mut call: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(calls));
    }
    best
}
