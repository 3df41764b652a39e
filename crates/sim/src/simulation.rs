//! Two applications on two endpoints.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use squall_core::Time;
use squall_wire::Side;

use crate::failure::Failure;
use crate::happening::Happening;
use crate::pair::{Pair, Setup};
use crate::party::Party;
use crate::plan::Plan;

const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// A run: both ends with their applications.
pub struct Simulation {
    /// The endpoints and the network.
    pub pair: Pair,
    /// The applications, by [`Side`].
    pub parties: [Party; 2],
    /// What is still to happen to the network, in order.
    happenings: VecDeque<(Time, Happening)>,
}

impl Simulation {
    /// A client that has begun to connect.
    #[must_use]
    pub fn new(setup: Setup, plan: Plan) -> Self {
        let pair = Pair::new(setup);
        let plan = Arc::new(plan);
        let parties = SIDES.map(|side| Party::new(side, &plan, pair.now()));
        Self {
            pair,
            parties,
            happenings: VecDeque::new(),
        }
    }

    /// Schedules changes of the network, each after this time from now.
    pub fn schedule(&mut self, happenings: Vec<(Duration, Happening)>) {
        let now = self.pair.now();
        let timed = happenings
            .into_iter()
            .map(|(after, what)| (now + after, what));
        self.happenings.extend(timed);
        // Stable: simultaneous changes happen in the order in which they were given.
        self.happenings.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    /// Number of changes that have not happened yet.
    #[must_use]
    pub fn happenings_left(&self) -> usize {
        self.happenings.len()
    }

    /// The application of one side.
    #[must_use]
    pub const fn party(&self, side: Side) -> &Party {
        &self.parties[side as usize]
    }

    /// The application of one side, to change how it reads.
    pub const fn party_mut(&mut self, side: Side) -> &mut Party {
        &mut self.parties[side as usize]
    }

    /// Lets time pass until `done` returns true.
    ///
    /// # Errors
    /// Anything that goes wrong on the way, or that `within` has passed.
    pub fn run_until(
        &mut self,
        within: Duration,
        what: &str,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), Failure> {
        let deadline = self.pair.now() + within;
        self.serve()?;
        while !done(self) {
            if self.pair.now() >= deadline {
                let parties = self.parties.each_ref().map(Party::describe).join("; ");
                let stats = SIDES.map(|side| self.pair.stats(side));
                return Err(self.pair.failure(format!(
                    "not within {within:?}: {what}; {parties}; {stats:?}"
                )));
            }
            let awake = SIDES.into_iter().filter(|s| !self.pair.is_suspended(*s));
            let wakes = awake.filter_map(|side| self.party(side).wake());
            let happening = self.happenings.front().map(|(at, _)| *at);
            let limit = wakes.chain(happening).min().unwrap_or(deadline);
            self.pair.step(limit.min(deadline))?;
            while self
                .happenings
                .front()
                .is_some_and(|(at, _)| *at <= self.pair.now())
                && let Some((_, happening)) = self.happenings.pop_front()
            {
                happening.apply(&mut self.pair)?;
            }
            self.serve()?;
        }
        Ok(())
    }

    /// Lets time pass.
    ///
    /// # Errors
    /// Anything that goes wrong on the way.
    pub fn run_for(&mut self, time: Duration) -> Result<(), Failure> {
        let end = self.pair.now() + time;
        self.run_until(time, "the time is over", |sim| sim.pair.now() >= end)
    }

    /// Whether both applications have read and delivered everything.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.parties
            .iter()
            .all(|p| p.has_read_all() && p.has_sent_all())
    }

    /// When the run began and the handshake was complete at both ends.
    #[must_use]
    pub fn connected(&self) -> Option<(Time, Time)> {
        let [client, server] = self.parties.each_ref().map(|p| p.connected);
        Some((Pair::start(), client?.max(server?)))
    }

    /// Ends the connection from one side.
    ///
    /// # Errors
    /// The guards find a violation.
    pub fn close(&mut self, side: Side, code: u64, reason: &[u8]) -> Result<(), Failure> {
        let now = self.pair.now();
        if let Some(connection) = self.pair.connection(side) {
            connection.close(now, code, reason);
        }
        self.pair.pump(side)?;
        self.serve()
    }

    /// Hands events to the applications and sends their responses, until nothing is left.
    fn serve(&mut self) -> Result<(), Failure> {
        for side in SIDES {
            if self.pair.is_suspended(side) {
                continue;
            }
            loop {
                let now = self.pair.now();
                let party = &mut self.parties[side as usize];
                let mut busy = false;
                let mut result = Ok(());
                while result.is_ok()
                    && let Some(event) = self.pair.poll_event(side)
                    && let Some(connection) = self.pair.connection(side)
                {
                    busy = true;
                    result = party.on_event(now, connection, event);
                }
                if result.is_ok()
                    && let Some(connection) = self.pair.connection(side)
                {
                    result = party.act(now, connection).map(|acted| busy |= acted);
                }
                result.map_err(|what| self.pair.failure(format!("{side:?}: {what}")))?;
                if !busy {
                    break;
                }
                self.pair.pump(side)?;
            }
        }
        Ok(())
    }
}
