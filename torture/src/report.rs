//! The report: a table for people and a line of JSON for programs.

use std::collections::BTreeMap;

use crate::checker::{INVARIANTS, Verdict};
use crate::clock::SECOND;
use crate::history::{History, Outcome};

#[derive(Debug)]
pub struct Report<'a> {
    pub seed: u64,
    pub history: &'a History,
    pub verdict: &'a Verdict,
    pub has_clock: bool,
}

impl Report<'_> {
    fn faults(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for fault in &self.history.faults {
            *kinds.entry(fault.kind.as_str()).or_insert(0) += 1;
        }
        kinds
    }

    fn writes(&self, outcome: Outcome) -> usize {
        let writes = self.history.acquisitions.iter().flat_map(|one| &one.writes);
        writes.filter(|write| write.outcome == outcome).count()
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let (history, verdict) = (self.history, self.verdict);
        let operations: u64 = history.acquisitions.iter().map(|one| one.operations).sum();
        let (unfenced, unfenced_value) = history.end.control;
        let fenced_lost: i64 = history
            .end
            .registers
            .iter()
            .map(|(_, writes, value)| writes - value)
            .sum();
        let seconds = (history.ended_at - history.began_at) / SECOND;
        vec![
            ("seconds", seconds.to_string()),
            ("operations", (operations + verdict.renewals).to_string()),
            ("acquisitions", history.acquisitions.len().to_string()),
            ("grants", verdict.grants.to_string()),
            ("renewals", verdict.renewals.to_string()),
            ("releases", verdict.releases.to_string()),
            ("fenced_writes_accepted", history.written.len().to_string()),
            ("fenced_writes_refused", self.writes(Outcome::Refused).to_string()),
            ("fenced_writes_unknown", self.writes(Outcome::Unknown).to_string()),
            ("fenced_updates_lost", fenced_lost.to_string()),
            ("unfenced_updates", unfenced.to_string()),
            ("unfenced_updates_lost", (unfenced - unfenced_value).to_string()),
            (
                "longest_wait_after_fault_ms",
                format!("{:.0}", verdict.longest_wait_after_fault_ms),
            ),
            ("calm_handoffs", verdict.handoffs.to_string()),
            ("calm_handoff_median_ms", format!("{:.0}", verdict.handoff_median_ms)),
            ("overtakings", verdict.overtakings.to_string()),
            ("beliefs_excused", verdict.excused_beliefs.to_string()),
            ("commits_lost_in_failover", verdict.lost_commits.to_string()),
        ]
    }

    pub fn table(&self) -> String {
        let mut lines = vec![format!("seed {}", self.seed)];
        for (what, figure) in self.figures() {
            lines.push(format!("    {:<32}{figure:>10}", what.replace('_', " ")));
        }
        lines.push(format!("    {:<32}{:>10}", "faults", self.history.faults.len()));
        for (kind, count) in self.faults() {
            lines.push(format!("        {kind:<28}{count:>10}"));
        }
        if !self.has_clock {
            lines.push("        clock                      skipped: libfaketime is not installed".into());
        }
        lines.push(format!("    {:<32}{:>10}", "violations", self.verdict.violations.len()));
        for (invariant, number, meaning) in INVARIANTS {
            lines.push(format!(
                "        {number:<5}{meaning:<50}{:>6}",
                self.verdict.count(invariant)
            ));
        }
        for (invariant, evidence) in self.verdict.violations.iter().take(20) {
            lines.push(format!("    {invariant:?}: {evidence}"));
        }
        lines.join("\n")
    }

    pub fn json(&self) -> String {
        let mut fields = vec![format!("\"seed\":{}", self.seed)];
        fields.extend(
            self.figures()
                .into_iter()
                .map(|(what, figure)| format!("\"{what}\":{figure}")),
        );
        fields.push(format!("\"faults\":{}", self.history.faults.len()));
        let kinds: Vec<_> = self
            .faults()
            .iter()
            .map(|(kind, count)| format!("\"{kind}\":{count}"))
            .collect();
        fields.push(format!("\"faults_by_kind\":{{{}}}", kinds.join(", ")));
        fields.push(format!(
            "\"clock_steps\":\"{}\"",
            if self.has_clock { "on" } else { "skipped" }
        ));
        fields.push(format!("\"violations\":{}", self.verdict.violations.len()));
        let broken: Vec<_> = INVARIANTS
            .iter()
            .map(|(invariant, number, _)| format!("\"{number}\":{}", self.verdict.count(*invariant)))
            .collect();
        fields.push(format!("\"violations_by_invariant\":{{{}}}", broken.join(", ")));
        format!("{{{}}}", fields.join(", "))
    }
}
