//! The DFlash drafter against an independent reference, and against itself in its other modes.

mod config;
mod fixture;
mod folder;
mod foreign;
mod golden;
mod init;
mod modes;
mod tiny_target;
