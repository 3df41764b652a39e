//! `squall serve`, run as a user runs it, with hyper as client and applications behind it.

#[path = "../common/mod.rs"]
mod common;

mod client;
mod files;
mod life;
mod proxy;
mod upgrade;
mod viewers;
