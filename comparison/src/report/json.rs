//! The figures for programs.

use serde_json::{Map, Value, json};

use crate::figures::Figures;
use crate::peer::Outcome;
use crate::plan::Plan;
use crate::targets::Target;

/// Every value of every round, and the targets.
pub fn write(figures: &Figures, targets: &[Target], plan: &Plan) -> Outcome<String> {
    let values: Vec<Value> = figures
        .keys()
        .map(|key| {
            let rounds: Map<String, Value> = figures
                .rounds(key)
                .map(|(round, value)| (round.to_string(), json!(value)))
                .collect();
            json!({
                "work": key.work.to_string(),
                "measure": key.measure,
                "peer": key.peer,
                "size": key.size,
                "median": figures.spread(key).map(|spread| spread.median),
                "rounds": rounds,
            })
        })
        .collect();
    let whole = json!({
        "quick": plan.is_quick,
        "seed": plan.seed,
        "notes": figures.notes,
        "targets": by_id(targets),
        "figures": values,
    });
    Ok(serde_json::to_string_pretty(&whole)?)
}

/// The targets on one line: value, target and whether it is met.
pub fn last_line(targets: &[Target]) -> String {
    let mut line = by_id(targets);
    for target in line.as_object_mut().into_iter().flatten() {
        if let Some(fields) = target.1.as_object_mut() {
            fields.retain(|field, _| ["value", "target", "met"].contains(&field.as_str()));
        }
    }
    line.to_string()
}

fn by_id(targets: &[Target]) -> Value {
    let targets = targets.iter().map(|target| (target.id.to_owned(), target.json()));
    Value::Object(targets.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Spread;
    use crate::targets::Bound;

    #[test]
    fn last_line_is_one_line_with_value_target_and_met_for_each() {
        let target = |id, found| Target {
            id,
            what: "what".to_owned(),
            bound: Bound::AtLeast(2.5),
            found: Spread::of(found),
        };

        let line = last_line(&[target("A.32", Some(3.0)), target("A.1", None)]);

        assert!(!line.contains('\n'));
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["A.32"]["value"], 3.0);
        assert_eq!(read["A.32"]["target"], "≥ 2.5");
        assert_eq!(read["A.32"]["met"], true);
        assert!(read["A.1"]["met"].is_null());
        assert_eq!(read["A.1"].as_object().unwrap().len(), 3);
    }
}
