//! Tests that inspect the internals of a connection.

mod ablation;
mod acked_runs;
mod closing;
mod fixed_bit;
mod moves;
mod probes;
mod received_runs;
mod sent_runs;
mod spent_numbers;
mod together;
mod twins;
