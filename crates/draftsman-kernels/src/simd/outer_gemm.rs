//! outer
