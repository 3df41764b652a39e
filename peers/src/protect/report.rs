//! Rows as tables with ratios and goals, or as JSON.

use serde::Serialize;

use super::args::{Direction, Name, Protect, Suite};
use super::contenders::Field;
use super::measure::Row;

/// The batch that the goals are set for.
const GOAL_BATCH: u16 = 8;

/// Target share of BoringSSL's time, by payload size.
const AES_GOALS: &[(u16, f64)] = &[(4, 0.1), (64, 0.2), (1450, 0.5)];
const CHACHA_GOALS: &[(u16, f64)] = &[(64, 0.45), (1450, 0.7)];

/// A row for other programs.
#[derive(Serialize)]
struct JsonRow {
    contender: &'static str,
    suite: &'static str,
    direction: &'static str,
    batch: u16,
    size: u16,
    ns: f64,
    ns_with_hp: f64,
}

/// Prints a list with one row per line.
pub(crate) fn json(rows: &[Row]) -> Result<(), String> {
    let mut lines = Vec::with_capacity(rows.len());
    for row in rows {
        let row = JsonRow {
            contender: row.contender.text(),
            suite: row.suite.text(),
            direction: row.direction.text(),
            batch: row.batch,
            size: row.size,
            ns: hundredths(row.ns),
            ns_with_hp: hundredths(row.ns_with_hp),
        };
        lines.push(serde_json::to_string(&row).map_err(|error| error.to_string())?);
    }
    println!("[\n  {}\n]", lines.join(",\n  "));
    Ok(())
}

fn hundredths(ns: f64) -> f64 {
    (ns * 100.0).round() / 100.0
}

/// Prints the contenders, a table for each suite, direction and batch, and the goals.
pub(crate) fn tables(args: &Protect, field: &Field, rows: &[Row]) {
    println!("CPU: {}", cpu());
    for entrant in &field.entrants {
        println!("{:10} {}", entrant.name.text(), entrant.version);
        println!("{:10}   code: {}", "", entrant.kernel);
    }
    for (name, reason) in &field.left_out {
        println!("{:10} left out: {reason}", name.text());
    }
    println!(
        "\nns a packet with header protection, medians of {} interleaved rounds; columns: payload bytes; \"of X\": squall's \
         time as a share of X's",
        args.rounds
    );
    for &suite in &args.suite {
        for &direction in &args.direction {
            for &batch in &args.batch {
                let rows: Vec<&Row> = (rows.iter())
                    .filter(|row| {
                        (row.suite, row.direction, row.batch) == (suite, direction, batch)
                    })
                    .collect();
                table(args, field, (suite, direction, batch), &rows);
            }
        }
    }
    if args.batch.contains(&GOAL_BATCH) {
        println!("\nbatches of {GOAL_BATCH}, with header protection:");
        for &suite in &args.suite {
            for &direction in &args.direction {
                goals(suite, direction, rows);
            }
        }
        required(rows);
    }
}

fn table(
    args: &Protect,
    field: &Field,
    (suite, direction, batch): (Suite, Direction, u16),
    rows: &[&Row],
) {
    println!(
        "\n{} {}, batches of {batch}",
        suite.text(),
        direction.text()
    );
    print!("{:16}", "");
    args.sizes.iter().for_each(|size| print!("{size:>8}"));
    println!();
    let of = |name, size| {
        (rows.iter())
            .find(|row| row.contender == name && row.size == size)
            .map(|row| row.ns_with_hp)
    };
    for entrant in &field.entrants {
        line(entrant.name.text(), &args.sizes, |size| {
            of(entrant.name, size).map(|ns| format!("{ns:.1}"))
        });
    }
    for entrant in field
        .entrants
        .iter()
        .filter(|entrant| entrant.name != Name::Squall)
    {
        line(
            &format!("of {}", entrant.name.text()),
            &args.sizes,
            |size| {
                let share = of(Name::Squall, size)? / of(entrant.name, size)?;
                Some(format!("{share:.2}"))
            },
        );
    }
}

/// Prints a line, or nothing if it would have no figure.
fn line(title: &str, sizes: &[u16], cell: impl Fn(u16) -> Option<String>) {
    let cells: Vec<Option<String>> = sizes.iter().map(|&size| cell(size)).collect();
    if cells.iter().all(Option::is_none) {
        return;
    }
    print!("{title:16}");
    for cell in cells {
        print!("{:>8}", cell.unwrap_or_default());
    }
    println!();
}

/// squall's time as a share of a peer's, in the batches that the goals are set for.
fn share(rows: &[Row], peer: &Row) -> Option<f64> {
    rows.iter()
        .find(|row| {
            row.contender == Name::Squall
                && (row.suite, row.direction, row.batch, row.size)
                    == (peer.suite, peer.direction, peer.batch, peer.size)
        })
        .map(|row| row.ns_with_hp / peer.ns_with_hp)
}

/// Prints one line per goal if both figures were measured.
fn goals(suite: Suite, direction: Direction, rows: &[Row]) {
    let goals = match suite {
        Suite::Aes128Gcm | Suite::Aes256Gcm => AES_GOALS,
        Suite::ChaCha20Poly1305 => CHACHA_GOALS,
    };
    for &(size, goal) in goals {
        let share = rows
            .iter()
            .find(|row| {
                row.contender == Name::BoringSsl
                    && (row.suite, row.direction, row.batch, row.size)
                        == (suite, direction, GOAL_BATCH, size)
            })
            .and_then(|row| share(rows, row));
        if let Some(share) = share {
            println!(
                "  {} {} {size} B: {share:.3} of BoringSSL (goal {goal}): {}",
                suite.text(),
                direction.text(),
                if share <= goal { "met" } else { "missed" }
            );
        }
    }
}

/// Prints where squall is not faster than a peer.
fn required(rows: &[Row]) {
    let shares: Vec<(&Row, f64)> = rows
        .iter()
        .filter(|row| row.contender != Name::Squall && row.batch == GOAL_BATCH)
        .filter_map(|row| Some((row, share(rows, row)?)))
        .collect();
    if shares.is_empty() {
        return;
    }
    let slower: Vec<&(&Row, f64)> = shares.iter().filter(|(_, share)| *share >= 1.0).collect();
    println!(
        "  faster than every peer at every size measured: {}",
        if slower.is_empty() { "met" } else { "missed" }
    );
    for (row, share) in slower {
        println!(
            "    {} {} {} B: {share:.2} of {}",
            row.suite.text(),
            row.direction.text(),
            row.size,
            row.contender.text()
        );
    }
}

/// The CPU's name, and those of its features by which contenders choose their code.
fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        (info.lines())
            .find(|line| line.starts_with(key))
            .and_then(|line| Some(line.split_once(':')?.1.trim()))
            .unwrap_or_default()
    };
    let features: Vec<&str> = value("flags")
        .split(' ')
        .filter(|flag| {
            ["aes", "pclmulqdq", "avx2", "bmi2", "vaes", "vpclmulqdq"].contains(flag)
                || flag.starts_with("avx512")
        })
        .collect();
    format!("{} ({})", value("model name"), features.join(" "))
}
