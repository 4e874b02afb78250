"""The page in a real browser, before a real gateway whose workers say what the test writes."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tests.orchestrator.live.channel_peer import messages_line
from tests.orchestrator.live.gateway_world import World, load_of, play
from workers.api.messages import Landed

T = TypeVar("T")
PASSING = (NoSuchElementException, StaleElementReferenceException)  # the page draws each second


class Page:
    """The browser, asked from beside the gateway's event loop, which keeps answering it."""

    def __init__(self, browser: webdriver.Chrome, w: World) -> None:
        self._browser, self._w = browser, w

    async def do(self, what: Callable[[webdriver.Chrome], T]) -> T:
        return await asyncio.to_thread(what, self._browser)

    async def until(self, true: Callable[[webdriver.Chrome], Any]) -> Any:
        wait = WebDriverWait(self._browser, 20, 0.1, ignored_exceptions=PASSING)
        return await asyncio.to_thread(wait.until, true)

    async def says(self, selector: str, *words: str) -> str:
        """The element's text, once all the words are in it."""

        def said(browser: webdriver.Chrome) -> str | None:
            text = str(browser.find_element(By.CSS_SELECTOR, selector).text)
            return text if all(word in text for word in words) else None

        return str(await self.until(said))

    async def click(self, selector: str) -> None:
        def click(browser: webdriver.Chrome) -> bool:
            browser.find_element(By.CSS_SELECTOR, selector).click()
            return True

        await self.until(click)

    async def count(self, selector: str) -> int:
        return await self.do(lambda b: len(b.find_elements(By.CSS_SELECTOR, selector)))

    async def run(self, script: str) -> Any:
        return await self.do(lambda b: b.execute_script(script))

    async def unlock(self) -> None:
        """Open it and give it the key."""
        await self.do(lambda b: b.get(f"{self._w.url}/"))
        await self.run("sessionStorage.clear(); location.reload()")
        await self.until(lambda b: b.find_element(By.ID, "key").is_displayed())
        await self.do(lambda b: b.find_element(By.ID, "key").send_keys("k1", Keys.ENTER))
        await self.says("#state", "ready")


async def relayed(w: World, upto: int) -> tuple["asyncio.Task[Any]", dict[str, dict[str, Any]]]:
    """A request on the relay route whose relay has brought all tokens before `upto`."""
    answer = w.complete(max_tokens=upto + 2)
    starts = {name: await peer.message("start") for name, peer in w.peers.items()}
    w.says("hami/p/0", starts["hami/p/0"], 0, [], 10)
    await w.law_reaches("hami/r/0", 1)
    law = [10]
    while len(law) < upto:
        w.says("hami/r/0", starts["hami/r/0"], len(law), law, 10 + len(law))
        law.append(10 + len(law))
    await w.law_reaches("shenzhen/q/0", upto)
    return answer, starts


async def finish(w: World, start: dict[str, Any], at: int) -> None:
    """Its KV lands, and main brings the last two tokens."""
    landed = Landed(request=start["request"], epoch=start["epoch"], covered=0)
    w.writers["shenzhen/q/0"].write(messages_line(landed))
    law = list(range(10, 10 + at))
    w.says("shenzhen/q/0", start, at, law, 10 + at)
    w.says("shenzhen/q/0", start, at + 1, [*law, 10 + at], 11 + at)


def test_a_request_is_followed_from_relay_to_its_timeline(browser: webdriver.Chrome) -> None:
    async def scenario(w: World) -> None:
        page = Page(browser, w)
        await w.all_up()
        await page.unlock()
        await page.says("#map", "hami", "2 of 2 workers up", "gateway", "8 Mbps", "RTT 50 ms")
        await page.says("#flow-lead", "None now.")
        answer, starts = await relayed(w, 5)
        await page.says("#flow [data-key=relay]", "1 relay", "#1 · 5")
        await page.says("#map [data-site=shenzhen]", "1 main")
        await page.click("#flow .chip")
        await page.says("#detail", "Request #1", "relay decode", "tokens 1 to 4", "goes on")
        await page.says("#detail [data-kind=prefill]", "hami/p/0", "token 0")
        await finish(w, starts["shenzhen/q/0"], 5)
        assert (await answer).status_code == 200
        await page.says("#recent", "#1", "relay", "7 out")
        await page.says("#detail [data-kind=main]", "shenzhen/q/0", "tokens 5 to 6")
        await page.says("#detail [data-kind=main]", "took over at token 5")
        await page.says("#detail tbody tr:nth-child(3)", "KV transfer", "hami to hami/r/0")
        await page.says("#detail tbody tr:nth-child(5)", "KV transfer", "hami to shenzhen/q/0")
        await page.click("#detail .close")
        assert await page.count("#detail:not([hidden])") == 0
        await page.do(
            lambda b: b.find_element(By.CSS_SELECTOR, "#recent .row").send_keys(Keys.ENTER)
        )
        await page.says("#detail", "Request #1", "ended after")
        drawn = int(await page.run("return document.documentElement.dataset.drawn"))
        await page.until(
            lambda b: int(b.execute_script("return document.documentElement.dataset.drawn")) > drawn
        )
        focused = "return document.activeElement.className"
        assert await page.run(focused) == "row", "drawing anew takes the focus from nobody"

    play(scenario)


def test_what_is_wrong_is_said_and_nobody_without_a_key_hears_it(browser: webdriver.Chrome) -> None:
    async def scenario(w: World) -> None:
        page = Page(browser, w)
        await w.all_up()
        await page.do(lambda b: b.get(f"{w.url}/"))
        await page.run("sessionStorage.clear(); location.reload()")
        await page.says("#door", "asks for a key")
        assert "smol" not in await page.run("return document.documentElement.outerHTML")
        await page.do(lambda b: b.find_element(By.ID, "key").send_keys("k2", Keys.ENTER))
        await page.says("#refused", "does not know this key")
        await page.unlock()
        assert await page.run("return document.cookie + localStorage.length") == "0"
        assert await page.count("#wrong li") == 0
        for name in ("hami/p/0", "hami/r/0"):
            await w.peers[name].stop()
        await page.says("#wrong", "Site hami is lost", "cut, or a site is lost")
        await page.says("#state", "ready, 2 things wrong")
        await page.says("#map [data-site=hami]", "lost", "0 of 2 workers up")
        assert await page.count("#map .line.bad") == 2
        await page.says("#failing", "workers lost")
        refused = await w.complete(prompt=[1] * 600)
        assert refused.status_code == 400
        await page.says("#failing", "too long", "prompt and output fit")
        complaints = await page.do(lambda b: b.get_log("browser"))
        assert not [one for one in complaints if "Security Policy" in one["message"]]

    play(scenario)


def test_it_fits_a_phone_and_dark_is_dark(browser: webdriver.Chrome) -> None:
    async def scenario(w: World) -> None:
        page = Page(browser, w)
        await w.all_up()
        await page.unlock()
        answer, starts = await relayed(w, 3)
        await page.click("#flow .chip")
        fits = """
            const {scrollWidth, clientWidth} = document.documentElement;
            const map = document.querySelector("#map svg").getBoundingClientRect().width;
            return scrollWidth <= clientWidth && map <= clientWidth
                && document.querySelectorAll("#detail tbody tr").length >= 5;
        """
        try:
            for width in (375, 800, 1280):
                size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
                await page.do(
                    lambda b, size=size: b.execute_cdp_cmd(
                        "Emulation.setDeviceMetricsOverride", size
                    )
                )
                await page.until(lambda b: b.execute_script(fits))
        finally:
            await page.do(lambda b: b.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {}))
        grey = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        assert min(await page.run(grey)) > 200
        for scheme in ("dark", "light"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            await page.do(
                lambda b, features=features: b.execute_cdp_cmd(
                    "Emulation.setEmulatedMedia", {"features": features}
                )
            )
            greys = await page.run(grey)
            assert max(greys) < 60 if scheme == "dark" else min(greys) > 200
        w.writers["shenzhen/q/0"].write(messages_line(load_of("shenzhen/q/0")))
        await finish(w, starts["shenzhen/q/0"], 3)
        assert (await answer).status_code == 200

    play(scenario)
