//! Packet protection of squall and its peers: the same packets and loop, interleaved in one run.
//!
//! ```text
//!   args ──► contenders    squall in groups; BoringSSL and OpenSSL (shared objects), aws-lc-rs,
//!               │          ring, RustCrypto and graviola packet by packet; contenders that cannot
//!               │          take part are named with the reason
//!               ▼
//!            check         every contender makes squall's bytes, opens them, refuses a forgery
//!               ▼
//!            measure       for every suite, direction, batch and size: each contender once per
//!               │          round, over packets that are restored in between; medians
//!               ▼
//!            report        tables with ratios and goals, or JSON rows
//! ```

mod args;
mod check;
mod contenders;
mod material;
mod measure;
mod packets;
mod report;

pub(crate) use args::Protect;

/// Runs what the arguments ask for and prints it; an error if a contender's result differs from
/// squall's.
pub(crate) fn run(args: &Protect) -> Result<(), String> {
    let field = contenders::enter(&args.contenders);
    if args.json {
        for (name, reason) in &field.left_out {
            eprintln!("{} is left out: {reason}", name.text());
        }
    }
    if field.entrants.is_empty() {
        let reasons: Vec<&str> = (field.left_out.iter())
            .map(|(_, why)| why.as_str())
            .collect();
        return Err(format!("no contender is left: {}", reasons.join("; ")));
    }
    check::check(args, &field.entrants)?;
    let rows = measure::measure(args, &field.entrants)?;
    if args.json {
        report::json(&rows)
    } else {
        report::tables(args, &field, &rows);
        Ok(())
    }
}
