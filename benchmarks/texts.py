"""What the benches let a model read: prose, Chinese, and code of the standard library."""

import heapq
import inspect

_PROSE = """
The lighthouse at Carrow Point had been automatic for thirty years, but the county still paid
somebody to live in it. The reason given in the contract was insurance. The reason given in the
village was that a light without a person behind it is only a lamp, and nobody wanted to be the
councillor who had turned the lighthouse into a lamp.

Marian took the post in October, when the summer visitors had gone and the ferry ran twice a week.
She brought two suitcases, a kettle that whistled, and a box of notebooks she meant to fill. She
had been a surveyor for the railway, and she had spent twenty years writing down where things
were. It seemed to her that she might now write down something else, though she had not decided
what.

The first week she learned the house. The kitchen faced the land and was warm; the bedroom faced
the sea and was not. The stairs to the lantern had one hundred and twelve steps, and the ninth
from the top was a little higher than the others, so that everyone who climbed in the dark
stumbled there once and never again. The previous keeper had left a list of such things pinned
inside the pantry door. The pump must be primed if it has frozen. The wireless hears Norway better
than it hears the harbour. The gulls will take anything that is not tied down, and some things
that are. At the bottom, in a different ink, he had added: you will think that you hear someone on
the stairs. It is the weights of the old clockwork, which were never taken out. They settle when
the wind is in the west.

She did hear someone on the stairs. It happened on the eleventh night, and although she had read
the note and believed it, she lay still for a long time and counted. Whoever it was climbed
slowly, and stopped at the ninth step from the top, and stumbled. In the morning she went up with
a torch and found the weights hanging in their shaft, rusted to the chain, exactly where they had
been since her grandmother was a girl. She wrote that down in the first notebook, with the date
and the direction of the wind, because that is what surveyors do with things they do not
understand.

By November there were four more entries. The wind had been in the west for three of them, and in
the north for one. She drew a small table. She noted the barometer, the height of the tide, the
hour, and whether she had been reading before she slept. A table is a patient thing. It does not
mind having too few rows, and it does not care what the answer turns out to be. When the ferryman
asked how she was getting on, she told him that she was collecting data, and he nodded as though
that were a kind of fishing.

The ferryman was called Tobias and he had carried every keeper for forty years. He said that the
last one had been a quiet man who played the accordion badly, and the one before him a married
couple who did not speak to one another, and the one before that a poet who left after nine days.
He said that all of them had complained of the stairs except the couple, who perhaps had each
supposed that it was the other. He asked whether she wanted anything from the town. She asked for
squared paper, a dozen batteries, and a ball of strong thread.

The thread she stretched across the stairs, at the height of an ankle, at every tenth step, and to
each length she tied a small brass bell from the box of Christmas things in the cellar. It was not
that she expected to catch anyone. She wanted to know in what order the sounds came, because a
person who climbs makes them one after another, from below, while a house that is cooling makes
them everywhere at once. It was the same question that she had once asked about a bridge near
Aldwater, where the drivers had reported a knocking under the second arch. It had taken her a
month to show that the knocking came from the train.

On the third of December the wind went round to the west and blew hard. She sat in the kitchen
with the door open and the lamp turned down, and a little after two the first bell rang, and then
the second. She wrote the times on the squared paper. The third was slower in coming, and between
the fourth and the fifth there was a gap of almost a minute, as if somebody had stopped to rest.
Marian found that she was not afraid, and this surprised her enough that she wrote it down as
well. When the last bell had rung she heard, quite clearly, the stumble at the ninth step from the
top, and after it a word which was not a polite one.

She went up. She had the torch in one hand and the poker in the other, and she broke her own
threads one after another, so that the bells rang again all the way to the lantern. There, sitting
on the floor with his back against the housing of the lens, was a boy of perhaps fifteen, very
wet, holding his shin. Beside him stood a bucket, a brush, and a tin of the polish that the county
had stopped buying when the light became automatic.

He said that his name was Ellis, and that his great-grandfather had been the keeper when the lens
was new. The lens had to be cleaned when the wind was in the west, he said, because of the salt;
the machines that turned the light on and off could not see that it was growing dim. His
grandfather had done it, and then his mother, and since the spring it had been his turn. There was
a door in the cellar that gave on the old boat slip. Nobody had ever told the keepers, because the
keepers came from the county, and the county would have wanted a form.

Marian lowered the poker. She looked at the lens, which was taller than she was and clear as
water, and at the beam that went out from it over twenty miles of sea. Then she asked him how
often the wind had been in the west since October, and he told her, and she went down one hundred
and twelve steps for her notebook, and came back up, and checked it against the table. There was
one night too many: the night in the north. Neither of them could account for it.

They sat until the storm was over and considered the matter. She made tea in the kettle that
whistled. He showed her how the brass was turned so that the polish did not streak, and she showed
him how to rule a table so that there is always room for one more column. Towards morning the wind
dropped, and in the silence, far below them, on a stair where every thread was broken and no bell
was left to ring, somebody began to climb.

It is fair to say what happened next, because the county has since asked, and because the form
that was sent has a space for it. They did not run. They stood at the head of the stairs with the
torch between them and watched the light move on the wall as the steps came nearer. At the ninth
step from the top they stopped. There was no stumble. Whoever it was knew the house too well for
that. And then, from the dark beneath them, someone began to play an accordion, softly, and really
very badly.
"""

_CHINESE = """
老陈在山里修了三十年的路。他说,路和人一样,看着结实,其实每天都在变。春天雨水多,土会往下走;夏天太阳晒,
石头会裂开;秋天落叶堵住水沟;到了冬天,冰在缝里一点一点地把整面坡撑松。所以修路不是修一次,而是要一直修下去。
去年秋天,镇上来了一位年轻的工程师,姓林。她带着一台小小的仪器,说可以把整座山的样子画进电脑里。老陈不太相信,
但还是陪她走了七天。他们从河口出发,沿着旧茶道往上,经过两座石桥、一片竹林和一个已经没有人住的村子。林工每走一百米
就停下来,把仪器架好,等上几分钟,再把数字记在本子上。老陈坐在旁边抽烟,看云从山的那一边慢慢翻过来。
第三天下午,他们在一处转弯的地方停了很久。仪器上的数字和地图对不上,差了将近两米。林工以为是机器坏了,反复测了
好几遍。老陈把烟灭掉,走到路边,用脚踩了踩,说:“不是机器的问题,是山走了。”他告诉她,三十年前这条路是直的,
后来每年往外偏一点,没有人注意,因为大家每天都在走,每天都觉得和昨天一样。
林工听了很惊讶。她问,既然知道山在动,为什么不早一点说?老陈笑了笑,说他每年都在报告里写,可是报告要写数字,他只有
脚的感觉,没有数字。上面的人看了,总是回信说情况已经知道,请继续观察。于是他就继续观察,观察了三十年。
那天晚上,他们住在护林员的小屋里。外面下着雨,屋里烧着柴火,锅里煮着土豆和腊肉。林工把白天的数据输进电脑,又让
老陈回忆每一年路边发生过的事情:哪一年倒了一棵松树,哪一年换过一段护栏,哪一年的裂缝是从左边开始的。老陈起初说
记不清了,可是一件事带出另一件事,越说越多,一直说到半夜。林工把这些都记下来,一条一条地标在图上。
等到最后一个点标完,屏幕上出现了一条弯弯的线。那条线从山顶开始,穿过竹林,绕过空村,正好停在他们白天站过的地方。
两个人都没有说话。火快要灭了,雨声也小了。过了一会儿,老陈说:“原来它是这样走的。”他的声音很轻,好像在说一位
认识了很久、却第一次看清样子的老朋友。
今年春天,镇上决定给那段路改线。新的路往里移了四十米,避开了滑动的坡面,又在旧茶道旁边留了一条小径,给走路的人用。
开工那天,老陈没有去剪彩,他一个人走到转弯的地方,把三十年前自己埋下的一块界石挖了出来。石头已经斜了,上面的字
还看得清楚。他用袖子擦了擦,背在背上,慢慢地往山下走。
林工后来把这件事写进了论文。论文里有公式,有图表,也有一节专门讲老陈的记忆。审稿的人问,这样的资料可靠吗?她回答说,
仪器告诉我们山现在在哪里,而他告诉我们山是怎样来到这里的。没有前者,我们不知道该往哪里修;没有后者,我们不知道该修
多久。审稿的人没有再问。
"""


def texts() -> dict[str, str]:
    """Name and text; each is some 1300 tokens or more of the default model's."""
    return {"prose": _PROSE, "chinese": _CHINESE, "code": inspect.getsource(heapq)}
