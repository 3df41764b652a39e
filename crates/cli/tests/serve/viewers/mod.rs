//! Viewers of a film in segments, and a server whose certificate is renewed and which is restarted
//! while they watch.
//!
//! ```text
//!   plan     how many viewers, for how long, at which bitrate
//!   film     segments of audio and video, with known bytes
//!   viewer   requests them in time on its own connection, and compares every byte
//!   watch    memory, descriptors and CPU of each process
//!   show     the servers' processes and what happens to them
//!      │       1/3   SIGHUP: a new certificate
//!      │       1/2   SIGTERM: GOAWAY, the requests in flight, the end; then another process
//!   judge    what must hold, and what did not
//! ```
//! A short form runs with the other tests, and `cargo xtask viewers` in any size.

mod film;
mod judge;
mod plan;
mod show;
mod viewer;
mod watch;

use plan::Plan;

/// Fails with a list of everything that did not hold.
fn must_hold(plan: &Plan) {
    let outcome = show::run(plan);
    let report = judge::Report::new(plan, &outcome);
    println!("{report}");
    if let Some(path) = &plan.json {
        std::fs::write(path, report.json()).expect("a file");
    }
    assert!(report.complaints.is_empty(), "{:#?}", report.complaints);
}

// test: RFC 9114 §5.2
#[test]
fn a_restart_loses_no_request_of_a_viewer() {
    must_hold(&Plan {
        viewers: 50,
        seconds: 8,
        ..Plan::default()
    });
}

#[test]
fn a_viewer_that_reads_nothing_does_not_delay_shutdown() {
    // Others wait for the grace period, which is shorter than their buffer.
    must_hold(&Plan {
        viewers: 5,
        seconds: 8,
        stuck: 2,
        grace: 1.0,
        ..Plan::default()
    });
}

#[test]
#[ignore = "minutes; run by cargo xtask viewers"]
fn as_planned() {
    must_hold(&Plan::of_xtask());
}
