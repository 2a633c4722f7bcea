//! The search over a simulated program: a lost update between two threads that shows only when thread 1 is
//! preempted at one of its points and thread 2 is not.

use check::{
    decision::{Action, Decision, Place},
    facts::{Facts, Point, ThreadFacts},
    pool::{Pool, Subject, SubjectError},
    property::Coverage,
    search::{Judged, Search, explain},
    strategy::StrategyName,
    trial::Trial,
    verdict::ALL,
};
use run::outcome::End;

struct Simulated;

fn place(thread: u64, syscall: u64) -> Place {
    Place { thread, syscall, returns: 0, offset: 0 }
}

impl Subject for Simulated {
    fn run(&mut self, decisions: &[Decision], _deeds: bool) -> Result<Trial, SubjectError> {
        let has = |thread, syscall| {
            decisions.contains(&Decision { place: place(thread, syscall), action: Action::Preempt })
        };
        let broken = has(1, 7) && !has(2, 7);
        Ok(Trial {
            ending: End::Exited(if broken { 2 } else { 0 }),
            steps: 100,
            output: [[0; 32]; 2],
            output_text: Vec::new(),
            outputs: Vec::new(),
            failed: Vec::new(),
            coverage: Coverage::default(),
            starved: false,
            spins: false,
            crashes: Vec::new(),
            waiters: Vec::new(),
            applied: decisions.iter().map(|d| (d.place.syscall < 15).then_some(d.place.syscall)).collect(),
            deeds: Vec::new(),
        })
    }
}

fn facts() -> Facts {
    let thread = |name| ThreadFacts { name, parent: 0, nth: name, tid: 0, pid: 0, born: 0, points: 20 };
    let points = (0..20)
        .flat_map(|i| {
            [1, 2].map(|t| Point { step: i * 2 + t, place: place(t, i), inside: 0, contended: true })
        })
        .collect();
    Facts { threads: vec![thread(1), thread(2)], points, ..Facts::default() }
}

fn search(jobs: usize) -> (Vec<String>, Vec<Decision>, Option<Decision>) {
    let mut pool = Pool::new((0..jobs).map(|_| Box::new(Simulated) as Box<dyn Subject>).collect());
    let reference = Simulated.run(&[], false).unwrap();
    let strategy = StrategyName::Random.make();
    let search = Search { strategy: &*strategy, seed: 3, schedules: 500, properties: &ALL, all: false };
    let mut lines = Vec::new();
    let each = |j: &Judged| {
        lines.push(format!("{} {} {:?}", j.index, j.trial.ending.word(), j.violates));
        true
    };
    let found = search.run(&mut pool, &facts(), &reference, each).unwrap();
    let first = found.first.expect("random finds it");
    let explained = explain(&mut pool, &ALL, &reference, &first).unwrap();
    (lines, explained.decisions, explained.partner.map(|(decision, _)| decision))
}

#[test]
fn one_and_three_jobs_tell_the_same_story() {
    let (lines, decisions, partner) = search(1);
    assert_eq!(decisions, [Decision { place: place(1, 7), action: Action::Preempt }]);
    assert_eq!(partner, Some(decisions[0]));
    assert_eq!(search(3), (lines, decisions, partner));
}
