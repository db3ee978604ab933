"""The studio in a real browser: choosing a policy, looking at it, replaying a fleet, training, and a live service."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import build_policy_file, report_document, serving
from studios import FLAGS, RunningStudio, find_browser, studio

from tandem.serving import write_policy_file
from tandem.serving.client import Client

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=60_000)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    path = find_browser()
    with playwright.sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def page(browser) -> Iterator[object]:
    """A page at 1280 x 800 on which no script may fail."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.set_default_timeout(60_000)
    yield page
    context.close()
    assert failures == []


@pytest.fixture(scope="module")
def running(library_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStudio]:
    with studio(library_folder, folder=tmp_path_factory.mktemp("studio")) as started:
        yield started


def open_view(page, running: RunningStudio, view: str) -> None:
    page.goto(f"{running.url}#{view}")
    wait_for_view(page, view)


def wait_for_view(page, view: str) -> None:
    expect(page.locator("body")).to_have_attribute("data-ready", view, timeout=60_000)


def run_id(page, name: str) -> str:
    runs = page.evaluate("fetch('/api/session').then(answer => answer.json())")["runs"]
    return next(run["id"] for run in runs if Path(run["name"]).name == name)


def test_a_preference_and_limits_choose_a_policy_and_show_the_command(page, running: RunningStudio) -> None:
    open_view(page, running, "front")
    expect(page.get_by_test_id("runs")).to_contain_text("cut short")  # the sentence of the broken run
    handle = page.get_by_test_id("triangle-handle")
    handle.focus()
    for _ in range(5):
        handle.press("ArrowUp")
    expect(page.get_by_test_id("command")).to_contain_text("--prefer accuracy=")
    expect(page.get_by_test_id("pick-result")).to_contain_text("the best for weights")
    expect(page.get_by_test_id("evaluated")).to_contain_text(re.compile(r"accuracy.* s.* J", re.DOTALL))
    page.get_by_test_id("limit-latency_s-number").fill("0.001")
    expect(page.get_by_test_id("within")).to_contain_text(re.compile("^0 of .* policies within the limits"))
    page.get_by_test_id("limits-clear").click()
    page.get_by_test_id("knee").click()
    expect(page.get_by_test_id("pick-result")).to_contain_text("the knee")
    with page.expect_download() as download:
        page.get_by_test_id("take-csv").click()
    assert Path(download.value.path()).read_text().startswith("index,accuracy,")
    with page.expect_download() as download:
        page.get_by_test_id("take-svg").click()
    assert "<svg" in Path(download.value.path()).read_text()


def test_a_policy_is_shown_beside_another_on_the_same_seed(page, running: RunningStudio) -> None:
    open_view(page, running, "policy")
    expect(page.get_by_test_id("side-1")).to_contain_text("of rounds violate a constraint")
    expect(page.get_by_test_id("violation-rates").first).to_contain_text("C3")
    page.get_by_test_id("second-run").select_option(run_id(page, "b"))
    expect(page.get_by_test_id("side-2")).to_be_visible()
    expect(page.get_by_test_id("side-2")).to_contain_text("accuracy")


def test_an_episode_is_replayed_step_by_step(page, running: RunningStudio) -> None:
    open_view(page, running, "fleet")
    expect(page.get_by_test_id("fleet-round")).to_contain_text("Round 0")
    page.get_by_test_id("step").click()
    expect(page.get_by_test_id("fleet-round")).to_contain_text("Round 1")
    page.get_by_test_id("play").click()
    expect(page.get_by_test_id("fleet-round")).to_contain_text("Round 9")  # the last of ten rounds
    expect(page.get_by_text("device-2")).to_be_visible()


def test_a_scenario_is_checked_trained_and_cancelled(page, running: RunningStudio) -> None:
    open_view(page, running, "scenario")
    devices = page.get_by_test_id("scenario-fleet.size")
    devices.fill("0")
    expect(page.get_by_test_id("scenario-problem")).to_contain_text("fleet.size is 0; write a number >= 1")
    expect(page.get_by_test_id("start-training")).to_be_disabled()
    devices.fill("4")
    expect(page.get_by_test_id("start-training")).to_be_enabled()
    page.get_by_test_id("training-name").fill("from-the-page")
    page.get_by_test_id("start-training").click()
    wait_for_view(page, "training")
    expect(page.get_by_test_id("training-status")).to_contain_text("training", ignore_case=True)
    deadline_s = time.monotonic() + 240
    request = f"fetch('/api/runs/{run_id(page, 'from-the-page')}/training').then(answer => answer.json())"
    while len(page.evaluate(request)["rounds"]) < 2:
        assert time.monotonic() < deadline_s
        page.wait_for_timeout(500)
    page.get_by_test_id("cancel").click()
    page.get_by_test_id("confirm-yes").click()
    expect(page.get_by_test_id("training-message")).to_contain_text("tandem train --resume")


def test_the_page_is_usable_with_the_keyboard_in_the_dark_and_on_a_tablet(browser, running: RunningStudio) -> None:
    context = browser.new_context(viewport={"width": 768, "height": 1024}, color_scheme="dark")
    page = context.new_page()
    open_view(page, running, "front")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")
    assert max(dark) < 80
    for view in ("policy", "fleet", "training", "scenario", "front"):
        tab = page.get_by_test_id(f"tab-{view}")
        tab.focus()
        tab.press("Enter")
        wait_for_view(page, view)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select')].filter(one => one.checkVisibility() &&"
        " !(one.getAttribute('aria-label') || one.labels?.length || one.textContent.trim() || one.title ||"
        " one.getAttribute('aria-labelledby'))).length"
    )
    assert unnamed == 0
    context.close()


def test_a_live_service_is_watched_and_its_operating_point_set(page, library_folder: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.safetensors"
    write_policy_file(policy, build_policy_file())
    with (
        serving(policy, f"sqlite:///{tmp_path}/tandem.db") as server,
        Client(server.url) as client,
        studio(library_folder, "--server", server.url, folder=tmp_path) as running,
    ):
        stop = threading.Event()

        def report() -> None:
            number = 0
            while not stop.wait(0.2):
                number += 1
                client._http.post("/v1/decisions", json=report_document(number))

        reporting = threading.Thread(target=report)
        reporting.start()
        try:
            open_view(page, running, "fleet")
            page.get_by_test_id("fleet-source").select_option("live")
            expect(page.get_by_text("device-2")).to_be_visible()
            page.wait_for_function(
                "() => Number(document.querySelector('[data-testid=fleet-round]').textContent.match(/\\d+/)[0]) > 5"
            )
            open_view(page, running, "front")
            page.get_by_test_id("weight-latency").fill("100")
            page.get_by_test_id("weight-latency").press("Enter")
            expect(page.get_by_test_id("pick-result")).to_contain_text("the best for weights")
            page.get_by_test_id("use-policy").click()
            page.get_by_test_id("confirm-yes").click()
            expect(page.get_by_test_id("server-state")).to_contain_text("Connected")
            page.wait_for_timeout(1000)
            point = client.operating_point().operating_point
            assert point.preference is not None
            assert point.preference.latency == pytest.approx(1.0)
        finally:
            stop.set()
            reporting.join()
