//! weight
