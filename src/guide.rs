#![doc = include_str!("guide/links.md")]
#![doc = include_str!("../docs/guide/README.md")]

// Documentation alone. The chapters are Markdown in docs/guide, so that they can be read in the repository too, and
// end with their links for that. The definitions of links.md come first here, and the first one counts.

#[doc = include_str!("guide/links.md")]
#[doc = include_str!("../docs/guide/semantics.md")]
pub mod semantics {}

#[doc = include_str!("guide/links.md")]
#[doc = include_str!("../docs/guide/ttl.md")]
pub mod ttl {}

#[doc = include_str!("guide/links.md")]
#[doc = include_str!("../docs/guide/naming.md")]
pub mod naming {}

#[doc = include_str!("guide/links.md")]
#[doc = include_str!("../docs/guide/loss.md")]
pub mod loss {}

#[doc = include_str!("guide/links.md")]
#[doc = include_str!("../docs/guide/waiting.md")]
pub mod waiting {}

#[doc = include_str!("guide/links.md")]
#[doc = include_str!("../docs/guide/pgbouncer.md")]
pub mod pgbouncer {}

#[doc = include_str!("guide/links.md")]
#[doc = include_str!("../docs/guide/failover.md")]
pub mod failover {}

#[doc = include_str!("guide/links.md")]
#[doc = include_str!("../docs/guide/upgrade.md")]
pub mod upgrade {}

#[doc = include_str!("guide/links.md")]
#[doc = include_str!("../docs/guide/tuning.md")]
pub mod tuning {}

#[doc = include_str!("guide/links.md")]
#[doc = include_str!("../docs/guide/troubleshooting.md")]
pub mod troubleshooting {}
