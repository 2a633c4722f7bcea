//! How long machines take to be put somewhere: `stage_speed HOME RUN ROOT`. For `benches/runs/measure.sh`.

use std::{path::Path, sync::Arc};

use run::{
    boot,
    clock::Wall,
    home::Home,
    root::Root,
    seek::Timeline,
    spec::{Content, ImageSpec},
    stage::Stage,
};
use vmm::{Until, address::Step};

fn milliseconds(began: Wall) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [home, id, root] = &arguments[..] else { anyhow::bail!("stage_speed HOME RUN ROOT") };
    let home = Home::open(Path::new(home))?;
    let cache = home.cache("images");
    let find = |_: &ImageSpec, _: &str| {
        let options = image::OpenOptions { cache: &cache, directory: Default::default(), progress: &|_| {} };
        let image = Arc::new(image::open(Path::new(root), &options).map_err(std::io::Error::other)?);
        let spec = ImageSpec { content: Content(image.id.0), len: image.image().len() };
        let open = Arc::new(move || Ok(image.image()));
        Ok(Root { spec, source: root.clone(), open, logged: false, origin: None, same: None, files: None })
    };
    let run = home.run(home.find(id)?)?;
    let (spec, recording) = (run.spec()?, run.recording()?);
    let key = recording.and_then(|recording| recording.boot);
    let key = key.ok_or_else(|| anyhow::anyhow!("the run names no boot keyframe"))?;
    let engine = vmm::EngineKind::Soft;
    let mut restores: Vec<f64> = Vec::new();
    let mut resets: Vec<(u64, f64)> = Vec::new();
    for _ in 0..5 {
        let began = Wall::now();
        let boot = boot::open(&home, key)?.ok_or_else(|| anyhow::anyhow!("no boot keyframe"))?;
        let image = (find(&spec.images[0], root)?.open)()?;
        let opened = milliseconds(began);
        let began = Wall::now();
        let mut stage = Stage::new(&home, &spec, engine, Arc::new(boot), vec![image])?;
        let first = Step(stage.machine().step().0 + 1);
        stage.run(&Until::step(first), &mut ())?;
        restores.push(milliseconds(began));
        for steps in [20, 200] {
            stage.run(&Until::step(Step(first.0 + steps)), &mut ())?;
            let dirty = stage.dirty_pages()?;
            let began = Wall::now();
            stage.restore_boot()?;
            resets.push((dirty, milliseconds(began)));
            stage.run(&Until::step(first), &mut ())?;
        }
        if restores.len() == 1 {
            println!("opening the boot keyframe and the root: {opened:.1} ms");
        }
    }
    restores.sort_by(f64::total_cmp);
    println!("restore to the first step, median of five: {:.1} ms (limit 10)", restores[2]);
    let (dirty, took) = resets.iter().fold((0, 0.0), |sum, reset| (sum.0 + reset.0, sum.1 + reset.1));
    println!(
        "reset: {:.3} ms for 100 dirty pages (limit 1), over {} resets of {} pages in the mean",
        took * 100.0 / dirty as f64,
        resets.len(),
        dirty / resets.len() as u64
    );

    let mut timeline = Timeline::open(&home, run, None, &find, &|_| {})?;
    let (first, last) = (timeline.first() + 1, timeline.last());
    let keyframes = timeline.keyframes();
    let mut random = 7u64;
    let (mut worst, mut longest) = (0.0f64, 0.0f64);
    for _ in 0..60 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let step = first + (random >> 33) % (last - first);
        let nearest = keyframes.iter().copied().rfind(|keyframe| *keyframe <= step).unwrap_or(first);
        let began = Wall::now();
        timeline.restore(nearest)?;
        worst = worst.max(milliseconds(began));
        let began = Wall::now();
        timeline.seek(Timeline::at(step))?;
        longest = longest.max(milliseconds(began));
    }
    println!(
        "60 random seeks, {} keyframes, {last} steps: at most {worst:.1} ms to the keyframe (limit 500), {longest:.1} ms from there",
        keyframes.len()
    );
    Ok(())
}
