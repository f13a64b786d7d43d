"""Crops and shifts against slices of single images."""

import pytest
import torch
import torch.nn.functional as F

from curl_rl.augment import _boxes, _boxes_by_numpy, centre_crop, crop, random_crop, random_shift


def random_images(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(len(shape)))


def random_words(*shape: int) -> torch.Tensor:
    return torch.randint(2**32, shape, generator=torch.Generator().manual_seed(1))


def words_of(corners: torch.Tensor, count: int) -> torch.Tensor:
    """The least words that give these corners out of `count`."""
    return (corners * 2**32 + count - 1) // count


def test_every_offset_is_reached_and_cuts_the_same_box_from_all_frames() -> None:
    image = random_images(9, 100, 100)
    corners = torch.cartesian_prod(torch.arange(17), torch.arange(17))
    crops = random_crop(image.expand(289, -1, -1, -1), 84, words_of(corners, 17))
    assert crops.dtype == torch.uint8
    for (top, left), cropped in zip(corners.tolist(), crops, strict=True):
        assert torch.equal(cropped, image[:, top : top + 84, left : left + 84])


@pytest.mark.parametrize(("offsets", "last"), [("all", 16), ("authors", 15)])
def test_range_of_the_offsets(offsets: str, last: int) -> None:
    rows, columns = torch.meshgrid(torch.arange(100), torch.arange(100), indexing="ij")
    image = torch.stack([rows, columns]).to(torch.uint8)
    corners = random_crop(image.expand(5000, -1, -1, -1), 84, random_words(5000, 2), offsets)[:, :, 0, 0].long()
    for axis in range(2):
        counts = torch.bincount(corners[:, axis])
        assert len(counts) == last + 1
        assert counts.min() > 0.7 * 5000 / (last + 1)  # uniform: four standard deviations below the mean
    assert len(corners.unique(dim=0)) == (last + 1) ** 2  # the axes do not depend on one another


@pytest.mark.parametrize("offsets", ["all", "authors"])
def test_a_crop_of_the_whole_image_is_the_image(offsets: str) -> None:
    images = random_images(4, 3, 20, 20)
    assert torch.equal(random_crop(images, 20, random_words(4, 2), offsets), images)


def test_leading_axes_are_so_many_single_crops_and_the_input_is_left_alone() -> None:
    images, words = random_images(2, 3, 6, 20, 24), random_words(2, 3, 2)
    before = images.clone()
    together = random_crop(images, 16, words)
    for t in range(2):
        for b in range(3):
            assert torch.equal(together[t, b], random_crop(images[t, b][None], 16, words[t, b][None])[0])
    assert torch.equal(images, before)


def test_both_ways_to_cut_agree() -> None:
    images, corners = random_images(20, 9, 30, 26).transpose(2, 3), torch.randint(0, 9, (20, 2))
    assert torch.equal(_boxes(images, 18, corners), _boxes_by_numpy(images, 18, corners))


def test_crop_takes_the_given_corner() -> None:
    images = random_images(2, 1, 10, 10)
    cropped = crop(images, 4, torch.tensor([[0, 6], [5, 1]]))
    assert torch.equal(cropped, torch.stack([images[0, :, :4, 6:], images[1, :, 5:9, 1:5]]))


def test_centre_crop() -> None:
    images = random_images(2, 3, 9, 100, 100)
    assert torch.equal(centre_crop(images, 84), images[..., 8:92, 8:92])
    assert torch.equal(centre_crop(images[..., :99], 84), images[..., 8:92, 7:91])


def test_random_shift_moves_by_up_to_pad_and_repeats_the_border() -> None:
    image = random_images(3, 12, 12)
    padded = F.pad(image[None].float(), (2, 2, 2, 2), mode="replicate")[0].to(torch.uint8)
    corners = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    shifted = random_shift(image.expand(25, -1, -1, -1), 2, words_of(corners, 5))
    for (top, left), one in zip(corners.tolist(), shifted, strict=True):
        assert torch.equal(one, padded[:, top : top + 12, left : left + 12])


def test_random_shift_refuses_oblong_images() -> None:
    with pytest.raises(ValueError, match="12 × 14"):
        random_shift(random_images(1, 3, 12, 14), 2, random_words(1, 2))
