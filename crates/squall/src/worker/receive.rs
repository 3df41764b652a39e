//! The first half of a turn: received datagrams go to their connections.
//!
//! ```text
//! recvmmsg ─> bundles ─ cut ─> runs ─ route ─> connection: one lock, one call
//!                                     ├──────> incoming: an attempt
//!                                     ├──────> another worker: forwarded
//!                                     ├──────> the process that had the port before: forwarded
//!                                     └──────> no connection: answered without state, or dropped
//! ```

use std::sync::Arc;

use squall_core::{ChunkPool, ConnectionHandle, Route, Stage, Stages};
use squall_udp::RecvBatch;
use squall_wire::{DatagramBatch, Ecn, Path, Transmit};

use super::calls::Calls;
use super::coalescing::Patience;
use super::limits::apply_endpoint_events;
use super::offer::HeldRun;
use super::shared::Half;
use super::{MESSAGE_BYTES, Worker, WorkerEndReason, lock};
use crate::takeover::Sent;

/// The most messages of one receive call.
pub(super) const RECV_MESSAGES: usize = 16;
/// Roughly the bytes of one receive call: together with the data made from them they fit the
/// level-2 cache.
pub(super) const RECV_BYTES: usize = 2 * MESSAGE_BYTES;
/// Roughly the runs of one receive call. If each belongs to another connection, the state of all
/// these connections stays in the level-2 cache from receiving to sending (decision 48).
const RECV_RUNS: usize = 64;
/// The most runs routed before the first of them is delivered.
const ROUTED_RUNS: usize = 16;
/// With this many connections ready to send, there is no wait for another receive call.
const WAITING_CONNECTIONS: usize = RECV_RUNS / 2;
/// How many more receive calls data waits for while the socket holds more than one call takes
/// (decision 44).
const DATA_WAITS: u32 = 1;
/// The same for acknowledgements, if there is nothing else to send.
const ACKS_WAIT: u32 = 3;

/// Runs still to be delivered to connections, in order.
#[derive(Default)]
struct Routed<'b> {
    runs: [Option<(ConnectionHandle, DatagramBatch<'b>)>; ROUTED_RUNS],
    len: usize,
}

impl<'b> Routed<'b> {
    /// Returns whether there is no room for another.
    fn push(&mut self, handle: ConnectionHandle, run: DatagramBatch<'b>) -> bool {
        self.runs[self.len] = Some((handle, run));
        self.len += 1;
        self.len == ROUTED_RUNS
    }

    /// The connection that a run is for.
    fn handle(&self, at: usize) -> Option<ConnectionHandle> {
        self.runs.get(at)?.as_ref().map(|(handle, _)| *handle)
    }

    fn take(&mut self, at: usize) -> Option<(ConnectionHandle, DatagramBatch<'b>)> {
        self.runs.get_mut(at)?.take()
    }
}

impl Worker {
    /// Receives what one call returns. Returns whether the socket was found empty.
    pub(super) fn receive(
        &mut self,
        recv: &mut RecvBatch,
        stages: &mut Stages,
    ) -> Result<bool, WorkerEndReason> {
        self.more_to_receive = false;
        self.learn_memory();
        // One call a turn: timers and senders get their share under a flood too.
        let begun = Calls::begin(&self.shared.measured);
        let received = self.socket.recv(recv);
        self.calls.received(begun, || recv.bytes() as u64);
        stages.mark(Stage::UdpReceive);
        if let Err(error) = received {
            if error.kind() == std::io::ErrorKind::WouldBlock {
                self.backoff.on_success();
                return Ok(true);
            }
            return self.on_receive_error(error).map(|()| false);
        }
        self.backoff.on_success();
        let runs = self.dispatch(recv.iter_mut(), stages);
        if let Some(messages) = (RECV_RUNS * recv.messages()).checked_div(runs) {
            recv.limit_next(messages);
        }
        // Datagrams forwarded by other workers have no part in this call.
        self.calls.received(None, || 0);
        self.more_to_receive = !recv.drained();
        Ok(!self.more_to_receive)
    }

    /// Receiving failed for a reason other than a lack of datagrams.
    fn on_receive_error(&mut self, error: std::io::Error) -> Result<(), WorkerEndReason> {
        if self.socket.is_fatal(&error) {
            return Err(WorkerEndReason::Socket(error));
        }
        if self.backoff.on_error(self.now) {
            return Err(WorkerEndReason::Receive(error));
        }
        if self.shared.common.receive_warnings.admits(self.now) {
            let (worker, local) = (self.shared.index, self.shared.common.address());
            crate::warnings::cannot_receive(local, worker, &error);
        }
        Ok(())
    }

    /// Cuts bundles into runs and passes each on to where it belongs. Returns the number of those
    /// that belong to connections.
    ///
    /// Several runs are routed before the first is delivered, so that their memory can be
    /// prefetched (decision 52).
    pub(super) fn dispatch<'b>(
        &mut self,
        bundles: impl Iterator<Item = DatagramBatch<'b>>,
        stages: &mut Stages,
    ) -> usize {
        let mut runs = 0;
        let mut routed = Routed::default();
        for mut bundle in bundles {
            (self.endpoint).prefetch_routes(bundle.bytes, bundle.segment_size);
            while !bundle.bytes.is_empty() {
                let (to, run) = self.next_run(&mut bundle);
                match to {
                    Route::Connection(handle) => {
                        runs += 1;
                        if routed.push(handle, run) {
                            self.deliver_all(&mut routed, stages);
                        }
                    }
                    // It can change where the next run belongs.
                    other => {
                        self.deliver_all(&mut routed, stages);
                        self.pass_on(other, run, stages);
                    }
                }
            }
        }
        self.deliver_all(&mut routed, stages);
        if self.for_predecessors.count() > 0 {
            self.flush_to_predecessors(stages);
        }
        runs
    }

    /// Delivers routed runs. While one connection receives, the memory of the next two is on its
    /// way to the caches: first the connection's own, then what that refers to. A connection's own
    /// memory is prefetched in two halves, since a core fetches only so many lines at a time and
    /// waits if it is asked for more.
    fn deliver_all(&mut self, routed: &mut Routed<'_>, stages: &mut Stages) {
        stages.mark(Stage::FrameParsing);
        if routed.len == 0 {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut chunks = lock(&shared.chunks);
        if let Some(second) = routed.handle(1) {
            self.prefetch(second.0);
        }
        for at in 0..routed.len {
            if let Some(after_next) = routed.handle(at + 2) {
                self.prefetch_half(after_next.0, Half::First);
            }
            if let Some(next) = routed.handle(at + 1)
                && let Some(Some(next)) = self.connections.get(next.0)
            {
                next.lock().core.prefetch();
            }
            if let Some((handle, run)) = routed.take(at) {
                self.deliver(handle, run, at == 0, &mut chunks, stages);
            }
            if let Some(after_next) = routed.handle(at + 2) {
                self.prefetch_half(after_next.0, Half::Second);
                self.wheel.prefetch(after_next.0);
            }
        }
        routed.len = 0;
    }

    /// Takes the datagrams that belong together off the front of a bundle.
    fn next_run<'b>(&mut self, bundle: &mut DatagramBatch<'b>) -> (Route, DatagramBatch<'b>) {
        let (path, segment_size) = (bundle.path, bundle.segment_size);
        let mut run = (self.endpoint).route(self.now, path, bundle.bytes, segment_size);
        if let Route::Worker(index) = run.to
            && (self.workers.get(usize::from(index))).is_some_and(|worker| worker.is_dead())
        {
            run = (self.endpoint).route_orphan(self.now, path, bundle.bytes, segment_size);
        }
        let bytes = std::mem::take(&mut bundle.bytes);
        // An empty run would be returned again for ever.
        let (bytes, rest) = bytes.split_at_mut(run.len.clamp(1, bytes.len()));
        bundle.bytes = rest;
        let run_bytes = DatagramBatch {
            path,
            ecn: bundle.ecn,
            segment_size,
            bytes,
        };
        (run.to, run_bytes)
    }

    /// Passes a run on.
    fn pass_on(&mut self, to: Route, run: DatagramBatch<'_>, stages: &mut Stages) {
        if !matches!(to, Route::Connection(_)) {
            self.coalescing.on_other();
        }
        match to {
            Route::Connection(handle) => self.deliver_alone(handle, run, stages),
            Route::Incoming(incoming) => self.on_incoming(incoming, &run),
            Route::Worker(index) => self.forward(index, &run),
            Route::Predecessor => self.forward_to_predecessors(&run, stages),
            Route::Respond(datagram) => self.respond(run.path, &datagram),
            Route::Discard => self.shared.counters.runs_discarded.add(1),
        }
    }

    /// Prefetches the memory of a connection that is next in line. With thousands of connections,
    /// none is still in the cache when its turn comes.
    pub(super) fn prefetch(&self, index: usize) {
        self.wheel.prefetch(index);
        self.prefetch_half(index, Half::First);
        self.prefetch_half(index, Half::Second);
    }

    fn prefetch_half(&self, index: usize, half: Half) {
        if let Some(Some(connection)) = self.connections.get(index) {
            connection.prefetch(half);
        }
    }

    /// Processes the runs that other workers forwarded.
    pub(super) fn take_forwarded(&mut self, stages: &mut Stages) {
        let mut runs = std::mem::take(&mut self.forwarded);
        self.shared.take_forwarded(&mut runs);
        self.dispatch(runs.iter_mut().map(HeldRun::batch), stages);
        runs.clear();
        self.forwarded = runs;
    }

    /// Forwards a run to the worker that it belongs to.
    fn forward(&self, index: u8, run: &DatagramBatch<'_>) {
        let taken = (self.workers.get(usize::from(index)))
            .is_some_and(|worker| worker.forward(HeldRun::of(run)));
        let counters = &self.shared.counters;
        match taken {
            true => counters.runs_forwarded.add(1),
            false => counters.forwards_dropped.add_from_anywhere(1),
        }
    }

    /// Forwards a run to the processes that had the port before, at the end of this dispatch.
    fn forward_to_predecessors(&mut self, run: &DatagramBatch<'_>, stages: &mut Stages) {
        if self.stopped_reading {
            // The successor has forwarded it to all of them.
            self.shared.counters.runs_discarded.add(1);
        } else if !self.for_predecessors.push(run) {
            self.flush_to_predecessors(stages);
            self.for_predecessors.push(run);
        }
    }

    /// Sends what waits for the processes that had the port before.
    fn flush_to_predecessors(&mut self, stages: &mut Stages) {
        let mut runs = std::mem::take(&mut self.for_predecessors);
        let (common, counters) = (&self.shared.common, &self.shared.counters);
        match common.send_to_predecessors(self.shared.index, &runs) {
            Sent::Yes => counters.runs_forwarded.add(runs.count()),
            Sent::Full => counters.forwards_dropped.add_from_anywhere(runs.count()),
            Sent::Gone if !common.owns_port() => counters.runs_discarded.add(runs.count()),
            Sent::Gone => {
                // From now on this process answers.
                self.endpoint.set_predecessor(false);
                self.dispatch(runs.iter_mut(), stages);
            }
        }
        runs.clear();
        self.for_predecessors = runs;
    }

    /// Delivers a run that is not one of several.
    pub(super) fn deliver_alone(
        &mut self,
        handle: ConnectionHandle,
        run: DatagramBatch<'_>,
        stages: &mut Stages,
    ) {
        let shared = Arc::clone(&self.shared);
        self.deliver(handle, run, true, &mut lock(&shared.chunks), stages);
    }

    /// Hands a run to its connection, and lends it the worker's chunks: one lock, one call, one
    /// look at its events. If the run is the `first` of several, nothing that the connection refers
    /// to has been prefetched.
    fn deliver(
        &mut self,
        handle: ConnectionHandle,
        run: DatagramBatch<'_>,
        first: bool,
        chunks: &mut ChunkPool,
        stages: &mut Stages,
    ) {
        let Some(Some(connection)) = self.connections.get(handle.0) else {
            self.shared.counters.runs_discarded.add(1);
            self.answer_for_closed(handle, &run);
            return;
        };
        let mut state = connection.lock();
        if first {
            state.core.prefetch();
        }
        state.core.prefetch_streams();
        let patience = Patience::of(&state.core, run.segment_size);
        (self.coalescing).on_run(run.bytes.len(), run.segment_size, patience);
        self.calls.deliver(&mut state, run.bytes.len());
        state.measure(stages, Stage::Runtime, |state, stages| {
            if let Some(spare) = state.core.spare_chunks() {
                chunks.absorb(spare);
            }
            state.core.swap_chunks(chunks);
            state.core.receive(self.now, run, stages);
            state.core.swap_chunks(chunks);
            apply_endpoint_events(&mut self.endpoint, handle, &mut state.core, self.now);
            self.to_wake.collect(state);
        });
        self.reports.collect(&mut state);
        let enqueue = !std::mem::replace(&mut state.queued, true);
        drop(state);
        if enqueue {
            self.ready.push_back(Arc::clone(connection));
        }
        self.shared.counters.locks.add(1);
        self.shared.counters.runs_received.add(1);
        stages.mark(Stage::Runtime);
    }

    /// Whether sending waits for another receive call, after it has waited for `waited` of them. It
    /// does not if so many connections have something to send that the call would push their state
    /// out of the caches.
    pub(super) fn waits_to_send(&self, waited: u32) -> bool {
        if !self.more_to_receive || self.ready.len() >= WAITING_CONNECTIONS {
            return false;
        }
        waited < DATA_WAITS || (waited < ACKS_WAIT && self.has_only_acks_to_send())
    }

    /// Whether no connection that is ready has data to send or is in its handshake. The little that
    /// may be left besides acknowledgements, such as a PATH_RESPONSE, waits with them.
    fn has_only_acks_to_send(&self) -> bool {
        self.ready.iter().all(|connection| {
            let core = &connection.lock().core;
            !core.wants_transmit() && !core.is_handshaking()
        })
    }

    /// Repeats the CONNECTION_CLOSE of a connection that this end has closed, if that is due.
    fn answer_for_closed(&mut self, handle: ConnectionHandle, run: &DatagramBatch<'_>) {
        let Some(closing) = self.closed.get_mut(&handle.0) else {
            return;
        };
        let (datagrams, bytes) = (run.count() as u64, run.bytes.len());
        let answer = closing.on_received(run.path.remote, datagrams, bytes);
        if let Some(answer) = answer.map(<[u8]>::to_vec) {
            self.respond(run.path, &answer);
        }
    }

    /// Sends one stateless datagram. If there is no room it is lost, as if in transit.
    pub(super) fn respond(&mut self, path: Path, datagram: &[u8]) {
        self.shared.counters.responses.add(1);
        if self.send.is_full() && !self.blocked {
            let _ = self.flush();
        }
        let Some(slot) = self
            .send
            .free_slot()
            .and_then(|slot| slot.get_mut(..datagram.len()))
        else {
            return;
        };
        slot.copy_from_slice(datagram);
        let segment_size = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
        self.send.push(Transmit {
            path,
            ecn: Ecn::NotEct,
            segment_size,
            len: datagram.len(),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use squall_udp::SendBatch;

    use super::super::MESSAGE_BYTES;
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn ten_minutes_of_failing_receives_end_a_worker() {
        const ENOKEY: i32 = 126;
        let mut worker = Worker::for_tests();
        let (mut recv, mut stages) = (RecvBatch::new(1, 2048), Stages::off());
        worker.socket.inject_recv_error(ENOKEY);
        let start = worker.now;
        let end = loop {
            match worker.receive(&mut recv, &mut stages) {
                Ok(_) => worker.now = worker.backoff.retry_at().unwrap(),
                Err(end) => break end,
            }
        };
        let WorkerEndReason::Receive(error) = end else {
            panic!("{end}");
        };
        assert_eq!(error.raw_os_error(), Some(ENOKEY));
        let minutes = (worker.now - start).as_secs() / 60;
        assert_eq!(minutes, 10);
        // Any successful call resets the count, even if nothing was there.
        worker.socket.inject_recv_error(0);
        assert!(worker.receive(&mut recv, &mut stages).unwrap());
        assert_eq!(worker.backoff.retry_at(), None);
        worker.now += Duration::from_secs(6000);
        worker.socket.inject_recv_error(ENOKEY);
        assert!(!worker.receive(&mut recv, &mut stages).unwrap());
        // The worker does not wait for a socket that is gone.
        worker.socket.inject_recv_error(9);
        let end = worker.receive(&mut recv, &mut stages).unwrap_err();
        assert!(matches!(end, WorkerEndReason::Socket(_)), "{end}");
    }

    #[cfg(all(feature = "self-signed", target_os = "linux"))]
    #[test]
    fn a_receive_call_returns_no_more_runs_than_the_cache_holds() {
        const SIZE: usize = 40;
        const DATAGRAMS: usize = 40;
        let (mut worker, mut stages) = (Worker::for_tests(), Stages::off());
        let any = ([127, 0, 0, 1], 0).into();
        let socket = squall_udp::Socket::bind(any, &squall_udp::Options::default()).unwrap();
        let to = |remote| Path {
            remote,
            local: None,
        };
        let identity = crate::tls::Identity::self_signed(["localhost"]).unwrap();
        let client = crate::tls::client(identity.roots().unwrap(), &[]).unwrap();
        for _ in 0..2 {
            let config = squall_core::ClientConfig::new(client.clone());
            let path = to(socket.local_addr().unwrap());
            let (handle, core) = (worker.endpoint)
                .connect(worker.now, config, path, "localhost")
                .unwrap();
            worker.insert(handle, core);
        }
        worker.transmit(&mut stages).unwrap();
        // Their ids, from their Initial packets.
        let (mut ids, mut recv) = (HashSet::new(), RecvBatch::new(4, MESSAGE_BYTES));
        while ids.len() < 2 {
            socket.recv(&mut recv).unwrap();
            for bundle in recv.iter_mut() {
                for hello in bundle.bytes.chunks(bundle.segment_size.into()) {
                    let ours = &hello[6 + usize::from(hello[5])..];
                    ids.insert(ours[1..][..usize::from(ours[0])].to_vec());
                }
            }
        }
        let ids: Vec<Vec<u8>> = ids.into_iter().collect();
        let nobody = vec![vec![0x55; 8], vec![0xaa; 8]];
        let local = worker.socket.local_addr().unwrap();
        let send = |messages: usize, datagrams: usize, ids: &[Vec<u8>]| {
            let mut batch = SendBatch::new(messages, SIZE * DATAGRAMS);
            for _ in 0..messages {
                let slot = batch.free_slot().unwrap();
                for (datagram, id) in slot.chunks_exact_mut(SIZE).zip(ids.iter().cycle()) {
                    // A short header.
                    datagram[0] = 0x40;
                    datagram[1..=id.len()].copy_from_slice(id);
                }
                batch.push(Transmit {
                    path: to(local),
                    ecn: Ecn::NotEct,
                    segment_size: SIZE as u16,
                    len: SIZE * datagrams,
                });
            }
            socket.send(&mut batch).unwrap();
        };
        let mut recv = RecvBatch::within(RECV_MESSAGES, MESSAGE_BYTES, RECV_BYTES);
        let mut receive = |worker: &mut Worker| {
            worker.receive(&mut recv, &mut stages).unwrap();
            recv.messages()
        };
        send(8, DATAGRAMS, &nobody);
        assert_eq!(receive(&mut worker), 8);
        send(8, DATAGRAMS, &ids);
        assert_eq!(
            receive(&mut worker),
            8,
            "runs of no connection are not limited"
        );
        let delivered = worker.shared.counters.runs_received.get();
        assert_eq!(delivered, (8 * DATAGRAMS) as u64, "each run is delivered");
        send(2, DATAGRAMS, &ids);
        assert_eq!(receive(&mut worker), 1);
        assert_eq!(receive(&mut worker), 1);
        // Messages of one datagram each have no more runs than fit.
        send(16, 1, &ids);
        let calls: Vec<usize> = (0..4).map(|_| receive(&mut worker)).collect();
        assert_eq!(calls, [1, 2, 4, 8]);
    }

    #[cfg(feature = "self-signed")]
    #[test]
    fn a_closed_connection_leaves_its_last_datagram_for_late_packets() {
        let identity = crate::tls::Identity::self_signed(["localhost"]).unwrap();
        let client = crate::tls::client(identity.roots().unwrap(), &[]).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let (remote, local) = (socket.local_addr().unwrap(), None);
        let path = Path { remote, local };
        let receive = || {
            let mut datagram = [0; 2048];
            let len = socket.recv(&mut datagram).ok()?;
            Some(datagram[..len].to_vec())
        };

        let (mut worker, mut stages) = (Worker::for_tests(), Stages::off());
        let config = squall_core::ClientConfig::new(client);
        let connected = (worker.endpoint).connect(worker.now, config, path, "localhost");
        let (handle, core) = connected.unwrap();
        let connection = worker.insert(handle, core);
        worker.transmit(&mut stages).unwrap();
        let hello = receive().expect("an Initial packet");
        while receive().is_some() {}
        let weak = Arc::downgrade(&connection);
        drop(connection);
        worker.close(7, b"done");
        worker.transmit(&mut stages).unwrap();
        let close = receive().expect("CONNECTION_CLOSE");
        assert!(
            weak.upgrade().is_none(),
            "the connection's state is dropped"
        );
        assert_eq!((worker.count, worker.closed.len()), (1, 1));

        // A datagram to the id that the client chose, which follows the server's.
        let id_at = 6 + usize::from(hello[5]);
        let id = &hello[id_at + 1..][..usize::from(hello[id_at])];
        let late = [&[0x40], id, &[0; 500]].concat();
        for (answers, from) in [
            (1, path),
            (1, path),
            (0, path),
            (
                0,
                Path {
                    remote: ([127, 0, 0, 2], 9).into(),
                    local,
                },
            ),
        ] {
            let mut bytes = late.clone();
            let segment_size = u16::try_from(late.len()).unwrap();
            let datagrams = DatagramBatch {
                path: from,
                ecn: Ecn::NotEct,
                segment_size,
                bytes: &mut bytes,
            };
            worker.dispatch(std::iter::once(datagrams), &mut stages);
            worker.transmit(&mut stages).unwrap();
            for _ in 0..answers {
                assert!(
                    receive() == Some(close.clone()),
                    "the CONNECTION_CLOSE is repeated"
                );
            }
        }
        assert!(receive().is_none());
        worker.now += Duration::from_secs(10);
        worker.time_out(&mut stages);
        assert_eq!((worker.count, worker.closed.len()), (0, 0));
        assert_eq!(worker.endpoint.connections(), 0);
    }
}
