//! The C allocator's habits.

/// Asks the C allocator to keep freed memory for the next allocation instead of giving it back to the system at
/// once. A training step allocates and frees the same buffers again and again, and the page faults of fresh memory
/// cost nearly as much as the arithmetic of a small attention layer. Programs call it once at their start; it does
/// nothing where the allocator is not glibc's.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt only sets numbers inside the allocator; these are within its documented limits.
    unsafe {
        // The largest value that glibc takes; larger blocks are mapped one by one.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
    }
}
