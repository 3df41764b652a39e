//! `squall serve`.

mod body;
mod files;
mod reader;
#[cfg(test)]
mod scratch;
