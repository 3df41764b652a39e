//! Pairs of endpoints on the virtual network. One program, which links once; `attacks` and `work`
//! count allocations and time, and are separate programs.

mod ack_frequency;
mod address;
mod amplification;
mod close;
mod common;
mod corpora;
mod crypto_buffer;
mod early_data;
mod ecn;
mod errors;
mod flow_control;
mod garbage;
mod handshake;
mod handshake_errors;
mod key_update;
mod loss;
mod migration;
mod negotiation;
mod path_size;
mod qlog;
mod reading;
mod recovery;
mod smoothness;
mod spin;
mod supplied_controller;
mod vanish;
mod version_information;
