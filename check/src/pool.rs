//! Runs schedules in parallel, each worker on its own machine, and hands the results over in order.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use crate::{decision::Decision, trial::Trial};

/// Why a run could not be made (the host's or the machine's failure, never the guest's).
#[derive(Debug, thiserror::Error)]
#[error("schedule could not be run: {0}")]
pub struct SubjectError(pub String);

/// Something that runs the job from the base machine under decisions. A function of the decisions.
pub trait Subject: Send {
    /// Runs to the end. With `deeds`, also gathers [`Trial::deeds`].
    fn run(&mut self, decisions: &[Decision], deeds: bool) -> Result<Trial, SubjectError>;
}

struct Order {
    index: usize,
    decisions: Vec<Decision>,
    deeds: bool,
}

type Answer = (usize, Result<Trial, SubjectError>);

/// Workers, each with a subject of its own.
pub struct Pool {
    orders: Option<Sender<Order>>,
    answers: Receiver<Answer>,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} workers)", self.workers.len())
    }
}

impl Pool {
    /// One worker thread per subject.
    ///
    /// # Panics
    /// Without subjects.
    pub fn new(subjects: Vec<Box<dyn Subject>>) -> Self {
        assert!(!subjects.is_empty(), "a pool needs a subject");
        let (orders, queue) = channel::<Order>();
        let queue = Arc::new(Mutex::new(queue));
        let (done, answers) = channel::<Answer>();
        let workers = subjects
            .into_iter()
            .map(|mut subject| {
                let (queue, done) = (Arc::clone(&queue), done.clone());
                std::thread::spawn(move || {
                    loop {
                        let Ok(order) = queue.lock().map_or_else(|e| e.into_inner().recv(), |q| q.recv())
                        else {
                            return;
                        };
                        let result = subject.run(&order.decisions, order.deeds);
                        if done.send((order.index, result)).is_err() {
                            return;
                        }
                    }
                })
            })
            .collect();
        Pool { orders: Some(orders), answers, workers }
    }

    /// How many run at once.
    pub fn jobs(&self) -> usize {
        self.workers.len()
    }

    /// Runs each of `inputs` and calls `each` with (position, decisions, trial) in the order of the inputs, until it
    /// breaks. At most a few inputs are in work or waiting at any time, however many there are.
    pub fn run<B>(
        &mut self,
        inputs: impl IntoIterator<Item = Vec<Decision>>,
        deeds: bool,
        mut each: impl FnMut(usize, Vec<Decision>, Trial) -> ControlFlow<B>,
    ) -> Result<Option<B>, SubjectError> {
        let orders = self.orders.as_ref().expect("the pool is alive until dropped");
        let mut inputs = inputs.into_iter().enumerate();
        let mut waiting: BTreeMap<usize, Vec<Decision>> = BTreeMap::new();
        let mut finished: BTreeMap<usize, Result<Trial, SubjectError>> = BTreeMap::new();
        let (mut next, mut in_flight) = (0, 0);
        let result = loop {
            while in_flight + finished.len() < 2 * self.workers.len() {
                let Some((index, decisions)) = inputs.next() else { break };
                waiting.insert(index, decisions.clone());
                if orders.send(Order { index, decisions, deeds }).is_err() {
                    break;
                }
                in_flight += 1;
            }
            if let Some(result) = finished.remove(&next) {
                let decisions = waiting.remove(&next).unwrap_or_default();
                match result.map(|trial| each(next, decisions, trial)) {
                    Ok(ControlFlow::Continue(())) => next += 1,
                    Ok(ControlFlow::Break(value)) => break Ok(Some(value)),
                    Err(error) => break Err(error),
                }
                continue;
            }
            if in_flight == 0 {
                break Ok(None);
            }
            match self.answers.recv() {
                Ok((index, result)) => {
                    in_flight -= 1;
                    finished.insert(index, result);
                }
                Err(_) => break Err(SubjectError("all workers are gone".into())),
            }
        };
        // What is still in work must not be taken for an answer to the next call.
        while in_flight > 0 && self.answers.recv().is_ok() {
            in_flight -= 1;
        }
        result
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.orders = None;
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so already.
            let _ = worker.join();
        }
    }
}
