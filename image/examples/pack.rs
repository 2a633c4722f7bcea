//! `pack DIR OUT`: writes the image of a directory, as `--root DIR` would serve it, to a file.

use image::dir::{DirOptions, read_dir};
use image::{TreeImage, write_image};
use std::{error::Error, fs::File, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [dir, out] = &args[..] else { return Err("usage: pack DIR OUT".into()) };
    let (tree, left_out) = read_dir(Path::new(dir), DirOptions::default())?;
    for one in left_out {
        eprintln!("left out: {} ({})", String::from_utf8_lossy(&one.path), one.what);
    }
    let mut image = TreeImage::new(tree, [0; 16])?;
    write_image(&mut image, &File::create(out)?, &mut |_| ())?;
    Ok(())
}
