//! Load on the machine, so that a test can be run while everything else is slow.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Threads that spin until the hog is dropped.
#[derive(Debug)]
#[must_use = "dropping a hog ends the load"]
pub struct CpuHog {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl CpuHog {
    /// Starts `threads` spinning threads.
    pub fn start(threads: usize) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let spin = || {
            let done = Arc::clone(&done);
            thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    spin_loop();
                }
            })
        };
        let threads = (0..threads).map(|_| spin()).collect();
        Self { done, threads }
    }
}

impl Drop for CpuHog {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A spinning thread has nothing to panic about.
            let _ = thread.join();
        }
    }
}
