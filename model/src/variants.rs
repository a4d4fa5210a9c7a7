//! What is run of what the protocol could have been: each variant where its bug shows.

use crate::invariant::Invariant;
use crate::lease::{self, Fault};
use crate::plan::{FENCED, GHOSTS, Run, TWICE, leases, queue as queue_of};
use crate::queue;

/// What the protocol could have been, each with the invariant that it breaks.
pub(crate) fn all() -> Vec<Run> {
    use lease::Variant;

    let broken = |title, variant, bounds, fault, invariant| Run {
        title,
        model: leases(bounds, fault, variant, &[invariant]),
    };
    let lost = |title, variant| Run {
        title,
        model: queue_of(4, 1, 2, queue::Fault::None, false, true, variant),
    };
    let none = Fault::None;
    vec![
        broken(
            "token drawn before the row lock",
            Variant::TokenBeforeLock,
            TWICE,
            none,
            Invariant::TokensRise,
        ),
        broken(
            "grant without flush, crash",
            Variant::GrantWithoutFlush,
            FENCED,
            Fault::Crash,
            Invariant::TokensRise,
        ),
        broken(
            "no epoch, lagging standby",
            Variant::NoEpoch,
            FENCED,
            Fault::LaggingStandby,
            Invariant::TokensRise,
        ),
        broken(
            "release without owner",
            Variant::ReleaseWithoutOwner,
            GHOSTS,
            none,
            Invariant::OwnGrantAlone,
        ),
        broken(
            "renewal without owner",
            Variant::RenewWithoutOwner,
            GHOSTS,
            none,
            Invariant::OwnGrantAlone,
        ),
        broken(
            "renewal that revives",
            Variant::RenewRevives,
            TWICE,
            none,
            Invariant::OwnGrantAlone,
        ),
        broken(
            "grant without for update",
            Variant::GrantWithoutForUpdate,
            TWICE,
            none,
            Invariant::FenceHoldsOff,
        ),
        broken(
            "plain-select fence",
            Variant::PlainSelectFence,
            TWICE,
            none,
            Invariant::StaleWriteRefused,
        ),
        broken(
            ">= fence, lagging standby",
            Variant::FenceAtLeast,
            FENCED,
            Fault::LaggingStandby,
            Invariant::StaleWriteRefused,
        ),
        broken(
            "fence without owner, rollback",
            Variant::FenceWithoutOwner,
            FENCED,
            Fault::Rollback,
            Invariant::StaleWriteRefused,
        ),
        broken(
            "window counted from the reply",
            Variant::WindowFromReply,
            TWICE,
            none,
            Invariant::BeliefEndsFirst,
        ),
        broken(
            "belief until the release is answered",
            Variant::BeliefUntilReleased,
            TWICE,
            none,
            Invariant::BeliefEndsFirst,
        ),
        broken(
            "late answer revives the belief",
            Variant::LateAnswerRevives,
            TWICE,
            none,
            Invariant::OwnGrantAlone,
        ),
        lost("sleeps without looking again", queue::Variant::SleepsWithoutLooking),
        lost("release without its mark", queue::Variant::ReleaseWithoutMark),
        lost("leave without its mark", queue::Variant::LeaveWithoutMark),
        lost("row read before the mark", queue::Variant::RowBeforeMark),
        lost("leave that tells nobody", queue::Variant::LeaveTellsNobody),
        lost("wake-up of one who left not passed on", queue::Variant::WakeForgotten),
    ]
}
